"""One bit per entry: the sign, and two reconstruction levels per group.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
Distributed Training of Speech DNNs", Interspeech 2014.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parsgd.compressors.base import Compressor, Key

GROUPS = ("column", "leaf")


class OneBit(NamedTuple):
    """Payload of `one_bit`.

    Attributes:
        bits: ``uint8 [ceil(n / 8)]``, set where the entry is >= 0.
        low: Mean of each group's negative entries, ``float32 [groups]``.
        high: Mean of each group's other entries, ``float32 [groups]``.
    """

    bits: jax.Array
    low: jax.Array
    high: jax.Array


def one_bit(*, levels: str = "column") -> Compressor:
    """The sign of each entry, decoded to the mean of its group's entries of that sign.

    For the entries v of one group::

        high = mean(v[v >= 0]),   low = mean(v[v < 0]),   q = high if v >= 0 else low

    The two means minimise the squared error for the threshold 0, and what is lost,
    ``v - q``, sums to zero over each sign of each group. Zero counts as positive. A
    group without entries of a sign has that level 0.

    Args:
        levels: ``"column"``: a group is all that feeds one output unit, i.e. everything
            but the last axis of a weight array (the paper's columns). ``"leaf"``: the
            whole array is one group.

    Returns:
        A compressor of ``ceil(n / 8) + 8 groups`` bytes for n entries.

    Raises:
        ValueError: Unknown ``levels``.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import one_bit
        >>> code = one_bit(levels="leaf")
        >>> v = jnp.array([[1.0, -2.0], [3.0, -4.0]])
        >>> code.decode(code.encode(v), v)
        Array([[ 2., -3.],
               [ 2., -3.]], dtype=float32)
    """
    if levels not in GROUPS:
        raise ValueError(f"levels={levels!r}: choose one of {', '.join(GROUPS)}")

    def grouped(x):
        last = x.shape[-1] if levels == "column" and x.ndim else 1
        return x.astype(jnp.float32).reshape(-1, last)

    def encode(x: jax.Array, key: Key = None) -> OneBit:
        del key
        v = grouped(x)
        positive = v >= 0
        n_high = jnp.sum(positive, axis=0)
        n_low = v.shape[0] - n_high
        high = jnp.sum(jnp.where(positive, v, 0.0), axis=0) / jnp.maximum(n_high, 1)
        low = jnp.sum(jnp.where(positive, 0.0, v), axis=0) / jnp.maximum(n_low, 1)
        return OneBit(jnp.packbits(positive.reshape(-1)), low, high)

    def decode(payload: OneBit, like: Any, key: Key = None) -> jax.Array:
        del key
        positive = jnp.unpackbits(payload.bits, count=like.size).reshape(
            -1, payload.low.size
        )
        v = jnp.where(positive == 1, payload.high[None], payload.low[None])
        return v.reshape(like.shape).astype(like.dtype)

    return Compressor(encode, decode, "one_bit")
