"""Momentum of each worker's own gradient, before it is compressed."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from parsgd.errors import UserError
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

    Returns:
        An optax transformation with the state of `optax.trace`.

    Raises:
        UserError: ``decay`` or ``dampening`` outside [0, 1).

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.reducers import local_momentum
        >>> momentum = local_momentum(0.5)
        >>> state = momentum.init(jnp.zeros(1))
        >>> for _ in range(3):
        ...     m, state = momentum.update(jnp.ones(1), state)
        ...     print(float(m[0]))
        1.0
        1.5
        1.75

    References:
        Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems",
        ICML 2018, arXiv:1802.04434 (signum). Zheng, Huang and Kwok,
        "Communication-Efficient Distributed Blockwise Momentum SGD with
        Error-Feedback", NeurIPS 2019. Fatkhullin, Tyurin and Richtarik, "Momentum
        Provably Improves Error Feedback!", NeurIPS 2023 (EF21-SGDM).

    Differences from the papers:
        Zheng et al. rescale the residual when the learning rate changes, and compress
        the average again (``two_sided`` of `error_feedback`). EF21-SGDM's m starts as a
        first, dense gradient, here as zero.
    """
    for name, value in (("decay", decay), ("dampening", dampening)):
        if not 0 <= value < 1:
            raise UserError(f"local_momentum: {name}={value} must be in [0, 1)")
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
        return out, optax.tree.where(good, new, state)

    return optax.GradientTransformation(init, update)


def has_momentum(state: Any) -> bool:
    """Whether a transformation's state holds moving averages of gradients."""

    def known(node: Any) -> bool:
        return not MOMENTA.isdisjoint(getattr(node, "_fields", ()))

    return any(known(node) for node in jax.tree.leaves(state, is_leaf=known))
