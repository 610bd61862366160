"""One byte per entry: linear steps, and the dynamic tree of decimal exponents.

Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016;
Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parsgd.compressors.base import Compressor, Key
from parsgd.compressors.groups import absmax, flat32, inverse, map_groups
from parsgd.compressors.rounding import round_clipped, round_randomly
from parsgd.errors import check_choice, check_whole

ROUNDINGS = ("nearest", "random")


class EightBit(NamedTuple):
    """Payload of `linear_8bit` and `dynamic_tree_8bit`.

    Attributes:
        codes: ``int8`` or ``uint8 [n]``.
        scale: Largest absolute value of each block, ``float32 [ceil(n / block_size)]``.
    """

    codes: jax.Array
    scale: jax.Array


def linear_8bit(
    *, block_size: int | None = None, rounding: str = "nearest"
) -> Compressor:
    """Equal steps between minus and plus the block's largest absolute value.

    For an entry v of a block whose largest absolute value is M::

        q = M / 127 * round(127 v / M)

    The largest entry comes back as it was, zero as zero, and a block whose M is below
    3.8e-37 as zeros, for 127 / M leaves float32. A block that is not finite does not
    decode to finite values; other blocks are not touched.

    Args:
        block_size: Consecutive entries that share M, 1 or more; None for the whole
            array. With blocks, one outlier costs precision in its own block only.
            Multiples of 32 are fast.
        rounding: ``"nearest"``, or ``"random"``: up or down such that the mean is v,
            with variance ``(M / 127)^2 p (1 - p)``, p the fraction.

    Returns:
        A compressor of ``n + 4 ceil(n / block_size)`` bytes. It contracts, and is fit
        for error feedback, with rounding to nearest, or ``block_size < 4 * 127^2``
        else.

    Raises:
        UserError: ``block_size`` is not a whole number of 1 or more, or unknown
            ``rounding``.
        ValueError: From ``encode``: no key to round at random.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import linear_8bit
        >>> compressor = linear_8bit()
        >>> v = jnp.array([-127.0, 0.0, 3.4])
        >>> compressor.decode(compressor.encode(v, None), v, None)
        Array([-127.,    0.,    3.], dtype=float32)

    References:
        Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016,
        arXiv:1511.04561. Dettmers et al., "8-bit Optimizers via Block-wise
        Quantization", ICLR 2022, for the blocks.

    Differences from the papers:
        They round to the nearest; ``rounding="random"`` is for use without feedback.
        The first has no blocks, and the second quantises the optimizer's state, where
        this is for what is sent.
    """
    _check_block(block_size)
    check_choice("rounding", rounding, ROUNDINGS)
    random = rounding == "random"

    def quantise(v, factor, start, key):
        t = v * factor
        q = round_randomly(t, 127, key, start) if random else round_clipped(t, 127)
        return q.astype(jnp.int8)

    def restore(codes, unit, start, extra):
        del start, extra
        return codes.astype(jnp.float32) * unit

    def encode(x: jax.Array, key: Key = None) -> EightBit:
        if random and key is None:
            raise ValueError("linear_8bit(rounding='random'): encode needs a key")
        flat = flat32(x)
        scale = absmax(flat, block_size)
        factor = inverse(scale, 127)
        return EightBit(map_groups(quantise, flat, factor, block_size, key), scale)

    def decode(payload: EightBit, like: Any, key: Key = None) -> jax.Array:
        del key
        v = map_groups(
            restore, payload.codes, payload.scale / 127, block_size, whole=True
        )
        return v.reshape(like.shape).astype(like.dtype)

    contracts = not random or (block_size is not None and block_size < 4 * 127**2)
    return Compressor(
        encode,
        decode,
        "linear_8bit",
        random,
        contracts=contracts,
        exposes_nonfinite=True,
        contracts_with="rounding='nearest'",
    )


def dynamic_tree_8bit(*, block_size: int | None = 2048) -> Compressor:
    """The nearest of 256 values whose spacing grows with their size: seven decades.

    A code is a sign and seven bits: a run of k zeros, a one, and the 6 - k bits that
    are left, as a number f::

        value = +- 10^-k (0.1 + 0.9 (f + 1/2) / 2^(6 - k))

    Seven zeros are 0; with the sign bit set they are +1, so that a block's largest
    value comes back as it was, if it is positive: -1 is -0.993. Values are relative to
    the block's largest absolute value M, so entries a million times smaller still have
    a code of their own. Zero decodes to zero, and so does a block whose M is above
    8.5e37, for 1 / M leaves float32. A block that is not finite does not decode to
    finite values; other blocks are not touched.

    Args:
        block_size: Consecutive entries that share the largest absolute value, 1 or
            more; None for the whole array, as in the first paper.

    Returns:
        A compressor of ``n + 4 ceil(n / block_size)`` bytes; contracts.

    Raises:
        UserError: ``block_size`` is not a whole number of 1 or more.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import dynamic_tree_8bit
        >>> compressor = dynamic_tree_8bit()
        >>> v = jnp.array([1.0, 0.0, -0.00007])
        >>> compressor.decode(compressor.encode(v, None), v, None)
        Array([ 1.000e+00,  0.000e+00, -6.625e-05], dtype=float32)

    References:
        Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016,
        arXiv:1511.04561. Dettmers et al., "8-bit Optimizers via Block-wise
        Quantization", ICLR 2022, for the blocks of 2048.

    Differences from the papers:
        The nearest code is computed, not searched for: a value's decade comes from
        seven comparisons with the midpoints between decades, and is linear inside.
    """
    _check_block(block_size)

    def encode(x: jax.Array, key: Key = None) -> EightBit:
        del key
        flat = flat32(x)
        scale = absmax(flat, block_size)
        factor = inverse(scale, 1)
        return EightBit(map_groups(_to_tree, flat, factor, block_size), scale)

    def decode(payload: EightBit, like: Any, key: Key = None) -> jax.Array:
        del key
        v = map_groups(_from_tree, payload.codes, payload.scale, block_size, whole=True)
        return v.reshape(like.shape).astype(like.dtype)

    return Compressor(
        encode, decode, "dynamic_tree_8bit", contracts=True, exposes_nonfinite=True
    )


def _check_block(size: int | None) -> None:
    if size is not None:
        check_whole("block_size", size)


def dynamic_tree_values() -> np.ndarray:
    """What each of the 256 codes stands for, ``float64``; see `dynamic_tree_8bit`."""
    values = np.zeros(256)
    for fraction_bits in range(7):
        count = 2**fraction_bits
        middle = 0.1 + 0.9 * (np.arange(count) + 0.5) / count
        values[count : 2 * count] = 10.0 ** (fraction_bits - 6) * middle
    values[128:] = -values[:128]
    values[128] = 1.0
    return values


def _thresholds() -> list[float]:
    """Smallest absolute value of each decade: midway between neighbouring values."""
    values = dynamic_tree_values()[:128]
    return [float((values[2**i - 1] + values[2**i]) / 2) for i in range(7)]


THRESHOLDS = _thresholds()
LARGEST = float((dynamic_tree_values()[127] + 1) / 2)
EXPONENT = 0xFF << 23  # of a float32


def _to_tree(v, factor, start, extra):
    """The nearest code: compare with the decades, then linear within one.

    Decade i has the codes from 2^i up to 2^(i + 1)::

        code = 2^i + floor((a / 10^(i - 6) - 0.1) / 0.9 * 2^i)
             = floor(slope a + 8/9 * 2^i) = round(slope a + shift)
    """
    del start, extra
    t = v * factor
    a = jnp.abs(t)
    slope, shift = jnp.zeros_like(a), jnp.zeros_like(a)
    for i, threshold in enumerate(THRESHOLDS):
        inside = a >= threshold
        slope = jnp.where(inside, 10.0 ** (6 - i) * 2**i / 0.9, slope)
        shift = jnp.where(inside, 2**i * 8 / 9 - 1 / 2, shift)
    # What is nearer to a decade's last value than to the next decade's first has the
    # last one's code: 2^(i + 1) - 1, and 0 below the first decade.
    code = round_clipped(jnp.minimum(a * slope + shift, shift * 9 / 4 + 1 / 8), 127)
    code = jnp.where((t < 0) & (code > 0), code + 128, code)
    return jnp.where(t >= LARGEST, 128, code).astype(jnp.uint8)


def _from_tree(codes, scale, start, extra):
    del start, extra
    code = codes.astype(jnp.int32)
    c = (code & 127).astype(jnp.float32)
    # 2^i, the first code of c's decade, is c without its mantissa.
    first = lax.bitcast_convert_type(
        lax.bitcast_convert_type(c, jnp.int32) & EXPONENT, jnp.float32
    )
    unit = jnp.zeros_like(c)
    for i in range(7):
        unit = jnp.where(c >= 2**i, 10.0 ** (i - 6) * 0.9 / 2**i, unit)
    v = (c + 0.5 - first * (8 / 9)) * unit
    v = jnp.where(code > 128, -v, v)
    return jnp.where(code == 128, 1.0, v) * scale
