"""Momentum of each worker's own gradient, before it is compressed."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from parsgd.reducers import paths

# Of the states of optax, and of those here, what holds moving averages of gradients.
MOMENTA = {"trace", "mu", "ema", "m", "momentum", "velocity"}


def local_momentum(
    decay: float = 0.9, *, nesterov: bool = False
) -> optax.GradientTransformation:
    """Hand on the momentum of a worker's gradients: ``m <- decay m + g``.

    For a chain, before a reducer that compresses: signum is ``chain(local_momentum(),
    majority_vote())``, error feedback with momentum (Zheng et al. 2019)
    ``chain(local_momentum(nesterov=True), error_feedback(...))``. As `optax.trace`, but
    a gradient that is not finite is handed on and leaves m as it was.

    Args:
        decay: In [0, 1).
        nesterov: Hand on ``decay m + g`` for the new m.

    Raises:
        ValueError: ``decay`` out of range.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"local_momentum: decay={decay} must be in [0, 1)")
    trace = optax.trace(decay, nesterov=nesterov)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        out, new = trace.update(updates, state, params)
        good = paths.finite(*jax.tree.leaves(updates))
        out = jax.tree.map(lambda x: jnp.where(good, x, jnp.nan), out)
        return out, paths.keep_unless(good, new, state)

    return optax.GradientTransformation(trace.init, update)


def has_momentum(state: Any) -> bool:
    """Whether a transformation's state holds moving averages of gradients."""

    def known(node: Any) -> bool:
        return not MOMENTA.isdisjoint(getattr(node, "_fields", ()))

    return any(known(node) for node in jax.tree.leaves(state, is_leaf=known))
