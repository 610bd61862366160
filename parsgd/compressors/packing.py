"""Unsigned integers of w bits without gaps, as bytes.

Row layout: n codes, with zeros added up to a multiple of 8, stand in 8 rows of
``m = ceil(n / 8)``; byte row j holds bits 8j to 8j + 7 of each column's 8 w bits::

    codes   [8, m]   code c of a column in bits c w .. c w + w - 1
    bytes   [w, m]   flattened: w ceil(n / 8) bytes

A column's codes are far apart in the array, so every byte row is a few shifts of whole
rows, which vectorise without shuffles. Neighbours in one byte, as in ``packbits``,
would need them.
"""

import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata


def alone(fn: Callable, *static: str) -> Callable:
    """A function compiled as a call of its own, which XLA does not inline.

    Inlined, XLA would fuse what makes a function's operands into each use of them: a
    packer would quantise every element once for each byte that it takes part in, one
    by one. Apart, its operands are computed once, into memory.

    Args:
        fn: A function of arrays.
        static: Names of its arguments that are not arrays.
    """

    @functools.partial(jax.jit, static_argnames=static)
    @functools.wraps(fn)
    def compiled(*args, **kwargs):
        with set_xla_metadata(inlineable="true"):  # for the functions that it calls
            return fn(*args, **kwargs)

    @functools.wraps(fn)
    def call(*args, **kwargs):
        with set_xla_metadata(inlineable="false"):
            return compiled(*args, **kwargs)

    return call


def _shifts(width: int) -> list[list[tuple[int, int]]]:
    """For each byte row, ``(code row, left shift)`` of what it holds."""
    return [
        [
            (row, row * width - 8 * byte)
            for row in range(8)
            if -width < row * width - 8 * byte < 8
        ]
        for byte in range(width)
    ]


def _word(width: int) -> jnp.dtype:
    narrowest = next(bits for bits in (8, 16, 32) if width <= bits)
    return jnp.dtype(f"uint{narrowest}")


def _shift(x: jax.Array, left: int) -> jax.Array:
    return x << left if left >= 0 else x >> -left


def _pack(codes: jax.Array, width: int) -> jax.Array:
    word = _word(width)
    flat = codes.astype(word)
    # A code that is too large, as of a NaN, must not touch its neighbours.
    flat = flat & word.type((1 << width) - 1)
    rows = flat.reshape(8, -1)
    packed = [
        functools.reduce(
            operator.or_,
            # Shifts to the left are of bytes: what they lose is in the next byte.
            (
                _shift(rows[row].astype(jnp.uint8), left)
                if left >= 0
                else _shift(rows[row], left).astype(jnp.uint8)
                for row, left in parts
            ),
        )
        for parts in _shifts(width)
    ]
    return jnp.concatenate(packed)


def _unpack(packed: jax.Array, width: int) -> jax.Array:
    word = _word(width)
    rows = packed.reshape(width, -1)
    parts: list[list[jax.Array]] = [[] for _ in range(8)]
    for byte, fields in enumerate(_shifts(width)):
        for row, left in fields:
            parts[row].append(_shift(rows[byte].astype(word), -left))
    codes = [functools.reduce(operator.or_, terms) for terms in parts]
    return jnp.concatenate(codes) & word.type((1 << width) - 1)


def _resize(flat: jax.Array, n: int) -> jax.Array:
    return jnp.pad(flat, (0, n - flat.size)) if n > flat.size else flat[:n]


def _unpackbits(packed: jax.Array, *, count: int) -> jax.Array:
    return jnp.unpackbits(packed, count=count)


# In a loop XLA moves the table of shifts in unpackbits to before the loop. Then it is
# no constant any more, and nothing that it is fused with vectorises.
_unpackbits_alone = alone(_unpackbits, "count")
_pack_alone = alone(_pack, "width")
_unpack_alone = alone(_unpack, "width")
_resize_alone = alone(_resize, "n")


def unpack_bits(packed: jax.Array, count: int) -> jax.Array:
    """``jnp.unpackbits`` that is fast also in a loop.

    Args:
        packed: ``uint8``, as of ``jnp.packbits``.
        count: Bits to unpack.

    Returns:
        ``uint8 [count]`` of 0 and 1.
    """
    return _unpackbits_alone(packed, count=count)


def pack(codes: jax.Array, width: int) -> jax.Array:
    """Pack unsigned integers below ``2**width``; higher bits are dropped.

    Args:
        codes: Unsigned integers of any shape, n in all.
        width: Bits of each, 1 to 32.

    Returns:
        ``uint8 [width * ceil(n / 8)]`` in the row layout above.

    Raises:
        ValueError: ``width`` outside 1 to 32.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors.packing import pack, unpack
        >>> pack(jnp.array([1, 0, 1, 1], jnp.uint8), 1)
        Array([13], dtype=uint8)
        >>> unpack(pack(jnp.arange(5, dtype=jnp.uint8), 3), 3, 5)
        Array([0, 1, 2, 3, 4], dtype=uint8)
    """
    _check(width)
    flat = codes.reshape(-1)
    if flat.size % 8:
        flat = _resize_alone(flat, n=-(-flat.size // 8) * 8)
    return _pack_alone(flat, width=width)


def unpack(packed: jax.Array, width: int, n: int) -> jax.Array:
    """The n codes of `pack`, flat, in the narrowest of ``uint8, uint16, uint32``.

    Args:
        packed: From `pack`.
        width: Bits of each code, 1 to 32.
        n: How many.

    Raises:
        ValueError: ``width`` outside 1 to 32.
    """
    _check(width)
    flat = _unpack_alone(packed, width=width)
    return flat if flat.size == n else _resize_alone(flat, n=n)


def _check(width: int) -> None:
    if not 1 <= width <= 32:
        raise ValueError(f"width={width}: codes have 1 to 32 bits")
