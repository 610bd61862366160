"""What a compressor is, and which leaves are worth compressing."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

Payload: TypeAlias = Any
Key: TypeAlias = jax.Array | None


class Compressor(NamedTuple):
    """A lossy encoding of one array: two pure functions, and facts about them.

    An array x is sent as ``encode(x)`` and arrives as ``q = decode(encode(x))``.

    Attributes:
        encode: ``(x, key) -> payload``, a pytree of the arrays that are sent, packed.
            ``key`` is a random key, or None for a compressor that draws nothing.
        decode: ``(payload, like, key) -> x``, an array of ``like``'s shape and dtype,
            where ``like`` is anything with ``.shape`` and ``.dtype``, and ``key`` is
            what `encode` got if ``shared_key``, else None: nobody knows what another
            worker drew with.
        name: For messages.
        stochastic: Whether the compressor draws random numbers, and so needs a key.
        shared_key: Whether all workers must draw the same numbers, such as indices
            that are not sent. Workers draw their own otherwise.
        sums: Whether payloads may be added on the way and decoded once, instead of
            being gathered. Worker w then sends ``encode(x_w / W)``, and
            ``decode(sum_w encode(x_w / W))`` must be the mean of what the x_w arrive
            as. So ``encode`` and ``decode`` must be linear, but for rounding: an offset
            in the payload would be added W times.
        contracts: Whether error feedback keeps what was not sent bounded.
            `error_feedback`, `ef21` and ``two_sided`` refuse a compressor without it.
            It does if ``|x - q|^2 <= (1 - delta) |x|^2 + c`` in expectation for some
            delta > 0 and a fixed c: 0 for most compressors, not for `threshold`, which
            leaves all entries below tau. Nothing checks it of a compressor of your own.
        exposes_nonfinite: Whether the payload's floats tell if the array is finite: one
            of them is not finite if an entry is not, and no entry decodes to a larger
            magnitude than the largest of them, but for rounding. Then only these few
            numbers are checked, and not the array or its average.
        encode_padded: ``(x, zeros, key) -> payload``: as ``encode``, where this many of
            the array's zeros (an int32 scalar) are padding, which count as no entries;
            for a compressor whose levels depend on the number of entries. None for a
            compressor whose levels do not change with zeros that are added.
        add: ``(total, payload, key) -> total``: add what a payload stands for to an
            array; for a compressor that sends few entries. None to decode the payload
            and add all of it.
        contracts_with: Where ``contracts`` is false: the argument with which it would
            be true, such as ``"norm='l1'"``, for the message that refuses it; empty if
            there is none.
        preserves_norm: Whether ``|q| = |x|``, as in 1-bit Adam: `parsgd.one_bit_adam`
            and `parsgd.zero_one_adam` keep a residual of such a compressor though it
            does not contract for all arrays.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd import Compressor
        >>> whole = Compressor(
        ...     encode=lambda x, key: jnp.round(x).astype(jnp.int8),
        ...     decode=lambda payload, like, key: payload.astype(like.dtype),
        ...     name="whole numbers")
        >>> v = jnp.array([1.2, -2.9])
        >>> whole.decode(whole.encode(v, None), v, None)
        Array([ 1., -3.], dtype=float32)
    """

    encode: Callable[[jax.Array, Key], Payload]
    decode: Callable[[Payload, Any, Key], jax.Array]
    name: str
    stochastic: bool = False
    shared_key: bool = False
    sums: bool = False
    contracts: bool = False
    exposes_nonfinite: bool = False
    encode_padded: Callable[[jax.Array, jax.Array, Key], Payload] | None = None
    add: Callable[[jax.Array, Payload, Key], jax.Array] | None = None
    contracts_with: str = ""
    preserves_norm: bool = False


def half_precision(compressor: Compressor) -> bool:
    """Whether a compressor's payload has floats of half precision, or less."""
    return any(
        jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
        for x in jax.tree.leaves(_payload(compressor, (8, 8), jnp.float32))
    )


def payload_bytes(compressor: Compressor, like: Any) -> int:
    """Bytes of the payload for an array of ``like``'s shape and dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import one_bit, payload_bytes
        >>> payload_bytes(one_bit(levels="leaf"), jnp.zeros((8, 8)))
        16
    """
    leaves = jax.tree.leaves(_payload(compressor, like.shape, like.dtype))
    return sum(x.size * x.dtype.itemsize for x in leaves)


def _payload(compressor: Compressor, shape: tuple[int, ...], dtype: Any) -> Payload:
    spec = jax.ShapeDtypeStruct(shape, dtype)
    key = jax.eval_shape(lambda: jax.random.key(0)) if compressor.stochastic else None
    return jax.eval_shape(compressor.encode, spec, key)


SMALL = "one-dimensional"
GROWS = "would not become smaller"


def why_small(like: Any, min_size: int = 0) -> str:
    """Why a leaf is too small to compress; empty if it is not.

    Biases and other one-dimensional leaves are a small part of the bytes and the most
    sensitive to quantisation.
    """
    if len(like.shape) < 2:
        return SMALL
    few = like.size < min_size
    return f"fewer than min_size={min_size} entries" if few else ""


def why_grows(like: Any, sent: int) -> str:
    """Why a leaf of which so many bytes would be sent is not; empty if it shrinks."""
    return "" if sent < like.size * like.dtype.itemsize else GROWS
