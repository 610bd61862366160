"""QSGD: random rounding to s levels of each bucket's norm.

Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NeurIPS 2017.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parsgd.compressors.base import Compressor, Key
from parsgd.compressors.groups import absmax, flat32, inverse, map_groups, norm2
from parsgd.compressors.packing import pack, unpack
from parsgd.compressors.rounding import round_randomly
from parsgd.errors import UserError, check_choice, check_whole

NORMS = {"l2": norm2, "max": absmax}


class QSGD(NamedTuple):
    """Payload of `qsgd`.

    Attributes:
        codes: Level and sign of each entry as ``level + s``, of w bits, packed as in
            `parsgd.compressors.packing`: ``uint8 [w ceil(n / 8)]``.
        norm: Of each bucket, ``float32 [ceil(n / bucket_size)]``.
    """

    codes: jax.Array
    norm: jax.Array


def qsgd(*, levels: int = 15, bucket_size: int = 512, norm: str = "l2") -> Compressor:
    """Signed multiples of the bucket's norm over s, rounded up or down at random.

    For an entry v of a bucket with norm N, and u uniform in [0, 1)::

        q = N / s * floor(s v / N + u),   E[q] = v,   E[(q - v)^2] = (N / s)^2 p (1 - p)

    where ``p = frac(s |v| / N)``. Summed over a bucket of d entries the variance is at
    most ``min(d / s^2, sqrt(d) / s) |v|^2`` for the Euclidean norm. A bucket of zeros
    decodes to zeros. A bucket that is not finite, or whose squares leave float32 (norm
    above about 1e19; below 1e-19 it is taken as zero), does not decode to finite
    values; other buckets are not touched.

    Args:
        levels: s, 1 to 127. 15 in 5 bits, 7 in 4 bits, 1 in 2 bits.
        bucket_size: d, consecutive entries that share a norm, 1 or more. Multiples of
            32 are fast.
        norm: ``"l2"``, the paper's analysis, or ``"max"``, what its experiments use: a
            larger part of the levels is used.

    Returns:
        A compressor of ``w ceil(n / 8) + 4 ceil(n / bucket_size)`` bytes with
        ``w = ceil(log2(2 s + 1))``. It contracts, and is fit for error feedback, when
        ``bucket_size < 4 s^2``.

    Raises:
        UserError: ``levels`` or ``bucket_size`` is not a whole number of 1 or more,
            ``levels`` above 127, or unknown ``norm``.
        ValueError: From ``encode``: no key.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from parsgd.compressors import qsgd
        >>> compressor = qsgd(levels=1, norm="max")
        >>> v = jnp.array([-2.0, 0.0, 2.0])
        >>> compressor.decode(compressor.encode(v, jax.random.key(0)), v, None)
        Array([-2.,  0.,  2.], dtype=float32)

    References:
        Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization
        and Encoding", NeurIPS 2017, arXiv:1610.02132.

    Differences from the paper:
        Codes have a fixed width instead of Elias codes: the length of those depends on
        the values, and arrays of a compiled program have one size. Level and sign are
        one number, so that zero needs no sign.
    """
    check_whole("levels", levels)
    check_whole("bucket_size", bucket_size)
    if levels > 127:
        raise UserError(f"levels={levels}: choose 1 to 127, which fit a byte with sign")
    check_choice("norm", norm, NORMS)
    width = math.ceil(math.log2(2 * levels + 1))

    def quantise(v, factor, start, key):
        q = round_randomly(v * factor, levels, key, start)
        return (q + levels).astype(jnp.uint8)

    def restore(codes, unit, start, extra):
        del start, extra
        return (codes.astype(jnp.int32) - levels).astype(jnp.float32) * unit

    def encode(x: jax.Array, key: Key) -> QSGD:
        if key is None:
            raise ValueError("qsgd rounds at random: encode needs a key")
        flat = flat32(x)
        size = NORMS[norm](flat, bucket_size)
        codes = map_groups(quantise, flat, inverse(size, levels), bucket_size, key)
        return QSGD(pack(codes, width), size)

    def decode(payload: QSGD, like: Any, key: Key = None) -> jax.Array:
        del key
        codes = unpack(payload.codes, width, like.size)
        v = map_groups(restore, codes, payload.norm / levels, bucket_size, whole=True)
        return v.reshape(like.shape).astype(like.dtype)

    return Compressor(
        encode,
        decode,
        f"qsgd(levels={levels})",
        stochastic=True,
        contracts=bucket_size < 4 * levels**2,
        exposes_nonfinite=True,
        contracts_with=f"bucket_size below {4 * levels**2}",
    )
