"""What 1-bit Adam and 0/1 Adam share: moments, and an average in one bit."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.compressors import Compressor, one_bit
from parsgd.errors import UserError
from parsgd.reducers import Exchange, ExchangeState, exchange, paths


def check_adam(name: str, b1: float, b2: float, eps: float) -> None:
    """Refuse decays and eps out of range.

    Args:
        name: Of the method, for the message.
        b1: Decay of the momentum.
        b2: Decay of the variance.
        eps: Added to the root of the variance.

    Raises:
        UserError: A decay is outside [0, 1), or ``eps`` is not positive.
    """
    for what, value in (("b1", b1), ("b2", b2)):
        if not 0 <= value < 1:
            raise UserError(f"{name}: {what}={value} must be in [0, 1)")
    if not eps > 0:
        raise UserError(f"{name}: eps={eps} must be positive")


def adam_channel(name: str, compressor: Compressor | None, **options: Any) -> Exchange:
    """How momenta are averaged.

    Args:
        name: Of the method, for messages.
        compressor: The code; None for `one_bit` with two levels per leaf.
        **options: Of `parsgd.reducers.exchange`.

    Raises:
        UserError: As `parsgd.reducers.exchange`.
    """
    code = one_bit(levels="leaf") if compressor is None else compressor
    if isinstance(code, Compressor) and code.preserves_norm:
        # The papers' own: not for all arrays, but for momenta, it shrinks its error.
        code = code._replace(contracts=True)
    return exchange(code, feedback=name, **options)


def zeros(params: Any) -> Any:
    """``float32`` zeros in the shape of the parameters."""
    return optax.tree.zeros_like(params, dtype=jnp.float32)


def moments(grads: Any, state: Any, b1: float, b2: float) -> tuple[Any, Any]:
    """Adam's two moving averages after one more gradient.

    ``m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2``

    Args:
        grads: g, of any floating-point type.
        state: Has m as ``mu`` and v as ``nu``, both ``float32``.
        b1: Decay of m.
        b2: Decay of v.

    Returns:
        m and v, ``float32``.
    """

    def decayed(decay, power):
        return lambda old, g: decay * old + (1 - decay) * g.astype(jnp.float32) ** power

    mu = jax.tree.map(decayed(b1, 1), state.mu, grads)
    return mu, jax.tree.map(decayed(b2, 2), state.nu, grads)


def average(
    channel: Exchange, tree: Any, nu: Any, error: dict, state: ExchangeState
) -> tuple[Any, dict, ExchangeState]:
    """Compressed average with error feedback of entries whose variance is not zero.

    Args:
        channel: How to compress and average.
        tree: This worker's ``float32`` arrays.
        nu: The variance; where it is 0 the average and the residual are 0 too, and
            such entries count in no level, except in levels per column.
        error: Residuals of the leaves that are compressed, by path.
        state: The exchange's state.

    Returns:
        The average, the residuals and the exchange's state. Leaves whose average is
        not finite keep the last two as they were.

    Raises:
        ValueError: ``error`` belongs to another model.
    """
    compressed, raw = channel.split(tree)
    paths.check("residual", error, compressed)
    variance, _ = channel.split(nu)
    live = {path: v > 0 for path, v in variance.items()}
    total = {path: v + error[path] for path, v in compressed.items()}
    mean, sent, good, new = channel.average(total, state, live)
    left = {}
    for path, v in total.items():
        rest = jnp.where(live[path], v - sent[path], 0.0)
        left[path] = jnp.where(good[path], rest, error[path])
    out = channel.join(mean, comm.mean(raw), tree)
    out = jax.tree.map(lambda m, v: jnp.where(v > 0, m, 0.0), out, nu)
    return out, left, new
