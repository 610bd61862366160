"""What a compressor is, and which leaves are worth compressing."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

Payload: TypeAlias = Any


class Compressor(NamedTuple):
    """A lossy code for one array: two pure functions.

    Attributes:
        encode: ``x -> payload``, a pytree of the arrays that are sent, packed.
        decode: ``(payload, like) -> x``, an array of ``like``'s shape and dtype, where
            ``like`` is anything with ``.shape`` and ``.dtype``.
    """

    encode: Callable[[jax.Array], Payload]
    decode: Callable[[Payload, Any], jax.Array]


def payload_bytes(compressor: Compressor, like: Any) -> int:
    """Bytes of the payload for an array of ``like``'s shape and dtype."""
    spec = jax.ShapeDtypeStruct(like.shape, like.dtype)
    leaves = jax.tree.leaves(jax.eval_shape(compressor.encode, spec))
    return sum(x.size * x.dtype.itemsize for x in leaves)


def pays(compressor: Compressor, like: Any) -> bool:
    """Whether a leaf is sent compressed: a matrix or larger, if that makes it smaller.

    Biases and other one-dimensional leaves are sent as they are: they are a small part
    of the bytes and the most sensitive to quantisation.
    """
    raw = like.size * like.dtype.itemsize
    return len(like.shape) > 1 and payload_bytes(compressor, like) < raw
