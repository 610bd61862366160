"""Natural compression: random rounding to a power of two.

Horvath et al., "Natural Compression for Distributed Deep Learning", 2019.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parsgd.compressors.base import Compressor, Key
from parsgd.compressors.groups import flat32, map_groups
from parsgd.compressors.packing import pack, unpack
from parsgd.compressors.random import uniform_bits
from parsgd.errors import check_choice

ROUNDINGS = ("random", "nearest")
MANTISSA = 23  # bits of a float32
WIDTH = 9  # sign and exponent


class Natural(NamedTuple):
    """Payload of `natural`.

    Attributes:
        codes: Sign and exponent of each entry, the upper 9 bits of its float32, packed
            as in `parsgd.compressors.packing`: ``uint8 [9 ceil(n / 8)]``.
    """

    codes: jax.Array


def natural(*, rounding: str = "random") -> Compressor:
    """Sign and exponent: the power of two above or below, with the right mean.

    For ``|v| = 2^e (1 + m)`` with m in [0, 1)::

        q = sign(v) 2^(e + 1) with probability m,   sign(v) 2^e else

    so that ``E[q] = v`` and ``E[(q - v)^2] = m (1 - m) 4^e <= v^2 / 8``. In bits: add a
    random mantissa to the float's, and let the carry run into its exponent. Powers of
    two and zero come back as they were, whatever is not finite as not finite, and no
    entry depends on another.

    Args:
        rounding: ``"random"`` as in the paper, or ``"nearest"``: the nearer of the two,
            with an error of at most ``|v| / 3``; biased.

    Returns:
        A compressor of ``9 ceil(n / 8)`` bytes; contracts.

    Raises:
        UserError: Unknown ``rounding``.
        ValueError: From ``encode``: no key to round at random.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import natural
        >>> compressor = natural(rounding="nearest")
        >>> v = jnp.array([-1.4, 0.0, 1.6])
        >>> compressor.decode(compressor.encode(v, None), v, None)
        Array([-1.,  0.,  2.], dtype=float32)

    References:
        Horvath et al., "Natural Compression for Distributed Deep Learning", 2019,
        arXiv:1905.10988.

    Differences from the paper:
        None within float32's normal range. Below it (under 1.2e-38) entries round to
        zero or to the smallest normal number, again with the right mean; above 1.7e38
        they may round to infinity.
    """
    check_choice("rounding", rounding, ROUNDINGS)
    random = rounding == "random"

    def encode(x: jax.Array, key: Key = None) -> Natural:
        if random and key is None:
            raise ValueError("natural rounds at random: encode needs a key")
        none = jnp.ones(1)  # no scale
        codes = map_groups(_upper_bits, flat32(x), none, None, key if random else None)
        return Natural(pack(codes, WIDTH))

    def decode(payload: Natural, like: Any, key: Key = None) -> jax.Array:
        del key
        codes = unpack(payload.codes, WIDTH, like.size).astype(jnp.uint32)
        v = jax.lax.bitcast_convert_type(codes << MANTISSA, jnp.float32)
        return v.reshape(like.shape).astype(like.dtype)

    return Compressor(encode, decode, "natural", stochastic=random, contracts=True)


def _upper_bits(v, scale, start, key):
    del scale
    bits = jax.lax.bitcast_convert_type(v, jnp.uint32)
    if key is not None:
        add = uniform_bits(key, v.shape, start) >> (32 - MANTISSA)
    else:
        add = jnp.uint32(1 << (MANTISSA - 1))
    # A carry out of the largest exponent would turn the sign.
    rounded = jnp.where(jnp.isfinite(v), bits + add, bits)
    return (rounded >> MANTISSA).astype(jnp.uint16)
