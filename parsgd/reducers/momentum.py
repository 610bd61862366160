"""Momentum of each worker's own gradient, before it is compressed."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from parsgd.reducers import paths

# Of the states of optax, and of those here, what holds moving averages of gradients.
MOMENTA = {"trace", "mu", "ema", "m", "momentum", "velocity"}


def local_momentum(
    decay: float = 0.9, *, dampening: float = 0.0, nesterov: bool = False
) -> optax.GradientTransformation:
    """Hand on the momentum of a worker's gradients.

    With gradient g and momentum m (zero at first)::

        m <- decay m + (1 - dampening) g

    For a chain, before a reducer that compresses::

        signum               local_momentum(), majority_vote()
        Zheng et al. 2019    local_momentum(nesterov=True), error_feedback(...)
        EF21-SGDM            local_momentum(1 - eta, dampening=1 - eta), ef21(...)

    As `optax.trace`, but m is ``float32`` also where gradients are of half precision,
    and a gradient that is not finite is handed on and leaves m as it was.

    Args:
        decay: In [0, 1).
        dampening: In [0, 1). As large as ``decay``, m is a moving average, of a
            gradient's size.
        nesterov: Hand on ``decay m + (1 - dampening) g`` for the new m.

    Raises:
        ValueError: ``decay`` or ``dampening`` out of range.

    References:
        Fatkhullin, Tyurin, Richtarik, "Momentum Provably Improves Error Feedback!",
        NeurIPS 2023 (EF21-SGDM).
    """
    for name, value in (("decay", decay), ("dampening", dampening)):
        if not 0 <= value < 1:
            raise ValueError(f"local_momentum: {name}={value} must be in [0, 1)")
    trace = optax.trace(decay, nesterov=nesterov)

    def wide(x: jax.Array) -> jax.Array:
        return x.astype(jnp.promote_types(x.dtype, jnp.float32))

    def init(params: Any) -> Any:
        return trace.init(jax.tree.map(wide, params))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        share = jax.tree.map(lambda g: (1 - dampening) * wide(g), updates)
        out, new = trace.update(share, state, params)
        good = paths.finite(*jax.tree.leaves(updates))
        out = jax.tree.map(
            lambda x, g: jnp.where(good, x, jnp.nan).astype(g.dtype), out, updates
        )
        return out, paths.keep_unless(good, new, state)

    return optax.GradientTransformation(init, update)


def has_momentum(state: Any) -> bool:
    """Whether a transformation's state holds moving averages of gradients."""

    def known(node: Any) -> bool:
        return not MOMENTA.isdisjoint(getattr(node, "_fields", ()))

    return any(known(node) for node in jax.tree.leaves(state, is_leaf=known))
