"""What a compressor is, and which leaves are worth compressing."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

Payload: TypeAlias = Any
Key: TypeAlias = jax.Array | None


class Compressor(NamedTuple):
    """A lossy code for one array: two pure functions, and facts about them.

    Attributes:
        encode: ``(x, key) -> payload``, a pytree of the arrays that are sent, packed.
            ``key`` is a random key, or None for a code that draws nothing.
        decode: ``(payload, like, key) -> x``, an array of ``like``'s shape and dtype,
            where ``like`` is anything with ``.shape`` and ``.dtype``, and ``key`` is
            what `encode` got if ``shared_key``, else None: nobody knows what another
            worker drew with.
        name: For messages.
        stochastic: Whether the code draws random numbers, and so needs a key.
        shared_key: Whether all workers must draw the same numbers, such as indices
            that are not sent. Workers draw their own otherwise.
        sums: Whether it is linear: the mean of payloads decodes to the mean of what
            they stand for, so they are reduced and not gathered.
        contracts: Whether ``|x - decode(encode(x))|^2 <= (1 - delta) |x|^2`` for some
            delta > 0, in expectation. Error feedback needs it; who writes a code must
            say so, for without it what was not sent grows without bound.
        exposes_nonfinite: Whether an entry that is not finite leaves a float of the
            payload not finite, and no entry decodes to more, but for rounding, than the
            largest of these. Such arrays need not be searched for what is not finite.
        encode_padded: ``(x, zeros, key) -> payload``: as ``encode``, where so many of
            the array's zeros (an int32 scalar) are padding and no entries; for a code
            whose levels depend on how many entries there are. None where zeros that
            are added change no level.
        add: ``(total, payload, key) -> total``: add what a payload stands for to an
            array, for a code that leaves most entries as they are; None to decode it
            and add all of it.
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


def half_precision(compressor: Compressor) -> bool:
    """Whether a code's payload has floats of half precision, or less."""
    return any(
        jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
        for x in jax.tree.leaves(_payload(compressor, (8, 8), jnp.float32))
    )


def payload_bytes(compressor: Compressor, like: Any) -> int:
    """Bytes of the payload for an array of ``like``'s shape and dtype."""
    leaves = jax.tree.leaves(_payload(compressor, like.shape, like.dtype))
    return sum(x.size * x.dtype.itemsize for x in leaves)


def _payload(compressor: Compressor, shape: tuple[int, ...], dtype: Any) -> Payload:
    spec = jax.ShapeDtypeStruct(shape, dtype)
    key = jax.eval_shape(lambda: jax.random.key(0)) if compressor.stochastic else None
    return jax.eval_shape(compressor.encode, spec, key)


SMALL = "one-dimensional"
GROWS = "would not become smaller"


def why_raw(compressor: Compressor, like: Any, *, min_size: int = 0) -> str:
    """Why a leaf is sent as it is; empty if it is compressed.

    A matrix or larger is, if that makes it smaller. Biases and other one-dimensional
    leaves are a small part of the bytes and the most sensitive to quantisation.

    Args:
        compressor: The code.
        like: The leaf.
        min_size: Leaves of fewer elements are sent as they are.
    """
    if len(like.shape) < 2:
        return SMALL
    if like.size < min_size:
        return f"fewer than min_size={min_size} entries"
    smaller = payload_bytes(compressor, like) < like.size * like.dtype.itemsize
    return "" if smaller else GROWS
