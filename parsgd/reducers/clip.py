"""Clipping by the norm of a whole gradient, without overflow."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from parsgd.compressors.groups import largest, unit_of
from parsgd.errors import UserError


def clip(norm: float) -> optax.GradientTransformation:
    """Shrink a gradient g to a largest norm c: ``g <- g min(1, c / |g|)``.

    The norm is of all leaves together, as `optax.clip_by_global_norm`'s, but that one
    turns gradients above 1e19, whose squares leave float32, into zeros. A gradient that
    is not finite has no norm: all of it becomes NaN, so that nothing takes it for
    small.

    Args:
        norm: c, above 0.

    Returns:
        An optax transformation without state.

    Raises:
        UserError: ``norm`` is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.reducers import clip
        >>> g = jnp.array([3e30, 4e30])
        >>> clip(1.0).update(g, ())[0].round(3)
        Array([0.6, 0.8], dtype=float32)

    References:
        Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural
        networks", ICML 2013.

    Differences from the paper:
        A gradient that is not finite becomes NaN everywhere. The norm is computed from
        scaled entries, so that no square overflows.
    """
    if not norm > 0:
        raise UserError(f"clip: norm={norm} must be positive")

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        return clipped(updates, norm), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def clipped(tree: Any, norm: float) -> Any:
    """A tree of arrays shrunk to a largest norm of all of them together."""
    wide = [g.astype(jnp.float32) for g in jax.tree.leaves(tree)]
    top = jnp.float32(0)
    for g in wide:
        own = largest(g)
        top = jnp.maximum(top, own) + (top * 0 + own * 0)  # a maximum may drop NaN
    down, unit = unit_of(top)
    wide = [g * down for g in wide]
    squares = sum((jnp.sum(jnp.square(g / unit)) for g in wide), jnp.float32(0))
    # Not c / |g|: the norm itself may be too large for float32.
    factor = norm / unit / jnp.where(squares == 0, 1.0, jnp.sqrt(squares))
    shrinks = ~(factor * down >= 1)  # or is not a number

    def shrunk(g: jax.Array) -> jax.Array:
        less = (g.astype(jnp.float32) * down * factor).astype(g.dtype)
        return jnp.where((top != 0) & shrinks, less, g)

    return jax.tree.map(shrunk, tree)
