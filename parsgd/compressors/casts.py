"""Narrower floating-point types: half precision, bfloat16 and eight-bit floats.

Micikevicius et al., "FP8 Formats for Deep Learning", 2022, for the latter.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parsgd.compressors.base import Compressor, Key
from parsgd.compressors.groups import absmax, flat32, inverse, map_groups
from parsgd.errors import check_choice

FORMATS = {"e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2}


class FP8(NamedTuple):
    """Payload of `fp8`.

    Attributes:
        codes: The eight-bit floats as bytes, ``uint8 [n]``.
        scale: What their largest finite value stands for, ``float32 [1]``, or None
            where nothing is scaled.
    """

    codes: jax.Array
    scale: jax.Array | None


def fp16() -> Compressor:
    """IEEE half precision: 11 bits of precision between 6e-5 and 65504.

    ``q = float16(v)``. Larger entries overflow to infinity, and those below 6e-8 are
    lost. Payloads are summed on the way, each scaled by 1/W first, so that the sum
    cannot overflow.

    Returns:
        A compressor of ``2 n`` bytes whose payload is the array in ``float16``;
        contracts.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import fp16
        >>> fp16().encode(jnp.array([1.0, 2.0]), None)
        Array([1., 2.], dtype=float16)

    References:
        IEEE 754, "Standard for Floating-Point Arithmetic": binary16.
    """
    return _cast(jnp.float16, "fp16")


def bf16() -> Compressor:
    """bfloat16: the range of float32 with 8 bits of precision.

    ``q = bfloat16(v)``. Payloads are summed on the way, each scaled by 1/W first.

    Returns:
        A compressor of ``2 n`` bytes whose payload is the array in ``bfloat16``;
        contracts.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import bf16
        >>> bf16().encode(jnp.array([1.0, 2.0]), None)
        Array([1, 2], dtype=bfloat16)

    References:
        Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019,
        arXiv:1905.12322.
    """
    return _cast(jnp.bfloat16, "bf16")


def fp8(*, format: str = "e4m3", scaled: bool = True) -> Compressor:
    """Eight-bit floats: 4 bits of precision over 2^-9..448, or 3 over 2^-16..57344.

    With the format's largest finite value F and the array's largest absolute value M::

        q = M / F * fp8(F v / M)

    Zero decodes to zero. Unscaled entries beyond F become F. Payloads are gathered, not
    summed: sums of eight-bit floats would lose most of their precision.

    Args:
        format: ``"e4m3"``, the usual choice, or ``"e5m2"``, with more range.
        scaled: Whether values are spread over the format's range, by M / F for each
            array.

    Returns:
        A compressor of ``n + 4`` bytes, or ``n`` unscaled. Contracts if scaled: beyond
        the format's range an error has no bound.

    Raises:
        UserError: Unknown ``format``.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import fp8
        >>> compressor = fp8(scaled=False)
        >>> v = jnp.array([1.0, 1.1, -1000.0])
        >>> compressor.decode(compressor.encode(v, None), v, None)
        Array([   1.   ,    1.125, -448.   ], dtype=float32)

    References:
        Micikevicius et al., "FP8 Formats for Deep Learning", 2022, for the formats.
    """
    check_choice("format", format, FORMATS)
    dtype = FORMATS[format]
    largest = float(jnp.finfo(dtype).max)

    def narrowed(v, unit, start, extra):
        del start, extra
        v = v * unit
        # Saturates what is finite only: infinities and NaN stay visible.
        v = jnp.where(jnp.isfinite(v), jnp.clip(v, -largest, largest), jnp.nan)
        return jax.lax.bitcast_convert_type(v.astype(dtype), jnp.uint8)

    def encode(x: jax.Array, key: Key = None) -> FP8:
        del key
        v, unit, scale = flat32(x), jnp.ones(1), None
        if scaled:
            scale = absmax(v, None)
            unit = inverse(scale, largest)
        return FP8(map_groups(narrowed, v, unit, None), scale)

    def decode(payload: FP8, like: Any, key: Key = None) -> jax.Array:
        del key
        v = jax.lax.bitcast_convert_type(payload.codes, dtype).astype(jnp.float32)
        if payload.scale is not None:
            v = v * (payload.scale / largest)
        return v.reshape(like.shape).astype(like.dtype)

    name, needs = f"fp8({format})", "scaled=True"
    return Compressor(encode, decode, name, contracts=scaled, contracts_with=needs)


def _cast(dtype: Any, name: str) -> Compressor:
    def encode(x: jax.Array, key: Key = None) -> jax.Array:
        del key
        return x.astype(dtype)

    def decode(payload: jax.Array, like: Any, key: Key = None) -> jax.Array:
        del key
        return payload.reshape(like.shape).astype(like.dtype)

    return Compressor(encode, decode, name, sums=True, contracts=True)
