"""Whole numbers of a known range from floats, without XLA's conversion.

XLA's conversion of floats to integers looks for NaN and overflow; on a CPU that takes
as long as all the rest of a quantiser. Here x + 1.5 * 2^(23 - f) is formed instead: its
mantissa, of 23 bits, ends in ``x 2^f``, rounded to nearest, ties to even.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from parsgd.compressors.random import uniform_bits


def round_clipped(x: jax.Array, top: int, *, fraction: int = 0) -> jax.Array:
    """``round(x 2^f)``, clipped to plus and minus ``top 2^f``.

    Args:
        x: ``float32``, any value; NaN becomes some number of the range.
        top: Largest absolute value, 1 or more.
        fraction: f, the bits after the point; ``top 2^f`` is at most 2^22.

    Returns:
        ``int32``.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors.rounding import round_clipped
        >>> round_clipped(jnp.array([-3.4, 0.5, 1.5, 9.0]), 4)
        Array([-3,  0,  2,  4], dtype=int32)
    """
    base = np.float32(1.5 * 2.0 ** (23 - fraction))
    zero, most = int(base.view(np.int32)), top << fraction
    # The maximum stands between x, a product, and the sum: merged into one operation in
    # one loop and not in another, they would give other numbers to one value.
    bits = lax.bitcast_convert_type(jnp.maximum(x, -top) + base, jnp.int32)
    # Floats are ordered as their bits: what is beyond the mantissa is clipped as well.
    return jnp.clip(bits, zero - most, zero + most) - zero


def round_randomly(x: jax.Array, top: int, key: jax.Array, start: int = 0) -> jax.Array:
    """One of the two integers around each entry, such that the mean is the entry.

    With f = 22 - ceil(log2(top)) and b the upper f bits of `uniform_bits`::

        q = floor((round(x 2^f) + b) / 2^f)

    is the upper one with probability ``frac(x)``, to 2^-f, for either sign; whole
    numbers stay as they are.

    Args:
        x: ``float32``; clipped at ``top``. NaN becomes some number of the range.
        top: Largest absolute value, 1 to 2^20.
        key: A JAX random key.
        start: As in `uniform_bits`.

    Returns:
        ``int32``, -top to top.
    """
    fraction = 22 - (top - 1).bit_length()
    bits = uniform_bits(key, x.shape, start) >> (32 - fraction)
    fixed = round_clipped(x, top, fraction=fraction)
    return (fixed + bits.astype(jnp.int32)) >> fraction
