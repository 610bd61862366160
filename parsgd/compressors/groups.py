"""Runs of consecutive entries that share a scale: fast sums over them, maps by group.

XLA on a CPU reduces the last axis of a tall array one element after the other. Here an
array is folded instead: whole slices are combined, which vectorises and runs on all
cores, until one column is left. An array that is not a whole number of groups is
worked on in two parts, because padding it would copy all of it.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from parsgd.compressors.packing import alone

SLICES = 32  # combined at once at most; the rest by halving
LANES = 32
ROW = 1024  # entries of a row of what has no groups


def _size_bits(x: jax.Array) -> jax.Array:
    """The bits of ``|x|``, which are ordered as its values are; NaN comes last.

    XLA's maximum of floats on a CPU drops NaN.
    """
    return lax.bitcast_convert_type(x, jnp.int32) & 0x7FFFFFFF


FOLDS = {
    "max": (_size_bits, jnp.maximum, jnp.max),
    "squares": (jnp.square, jnp.add, jnp.sum),
}


def inverse(scale: jax.Array, top: float) -> jax.Array:
    """``top / scale``; 0 where that is not finite, as for groups of zeros."""
    out = top / scale
    return jnp.where(jnp.isfinite(out), out, 0.0)


def group_count(n: int, size: int | None) -> int:
    """Groups of ``size`` consecutive entries in n; one where ``size`` is None."""
    return -(-n // size) if size and n > size else 1


def flat32(x: jax.Array) -> jax.Array:
    """The entries in order, as ``float32``."""
    return x.astype(jnp.float32).reshape(-1)


def absmax(flat: jax.Array, size: int | None) -> jax.Array:
    """Largest absolute value of each group, ``[groups]``; 0 for an empty one.

    NaN where a group has an entry that is not finite.
    """
    if group_count(flat.size, size) == 1:
        return largest(_sizes(flat, ROW) if flat.size > ROW else flat)[None]
    most = _sizes(flat, size)
    return most + most * 0  # infinity is NaN


def _sizes(flat: jax.Array, size: int | None) -> jax.Array:
    return lax.bitcast_convert_type(_fold(flat, size, "max"), jnp.float32)


def largest(x: jax.Array, axis: Any = None) -> jax.Array:
    """Largest absolute value, 0 of none; NaN where an entry is not finite.

    XLA's maximum on a CPU drops NaN in arrays of some thousand entries.
    """
    most = jnp.max(jnp.abs(x), axis=axis, initial=0.0)
    return most + jnp.sum(x * 0, axis=axis)


def unit_of(largest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``(down, unit)`` for which ``x * down / unit`` is ``x / largest``.

    Squares of entries above 1e19 or below 1e-19 leave float32; those of entries over
    the largest one do not. Down comes first, because 1 / largest of the largest numbers
    is no normal one. Zeros stay zeros.

    Args:
        largest: Largest absolute value, a scalar of 0 or more.
    """
    down = jnp.where(largest > 1, 2.0**-64, 1.0)
    return down, jnp.where(largest == 0, 1.0, largest * down)


def norm2(flat: jax.Array, size: int | None) -> jax.Array:
    """Euclidean norm of each group, ``[groups]``."""
    if group_count(flat.size, size) == 1:
        return jnp.sqrt(total(flat, jnp.square))[None]
    return jnp.sqrt(_fold(flat, size, "squares"))


def total(flat: jax.Array, fn: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Sum of ``fn`` over a flat array."""
    if flat.size % (SLICES * LANES):
        return jnp.sum(fn(flat))
    # In two steps, of which the first vectorises across lanes.
    return jnp.sum(jnp.sum(fn(flat).reshape(-1, SLICES, LANES), axis=1))


def map_groups(
    fn: Callable[[jax.Array, jax.Array, int, Any], jax.Array],
    flat: jax.Array,
    scale: jax.Array,
    size: int | None,
    extra: Any = None,
    *,
    whole: bool = False,
) -> jax.Array:
    """``fn(values [groups, entries], scale [groups, 1], start, extra)``, flat again.

    Args:
        fn: Of the values of some groups and their scales; ``start`` is the number of
            the first value. The same object in every call, since it is compiled.
        flat: Values, ``[n]``.
        scale: One for each group, or one for all.
        size: Entries of a group; the last one may have fewer.
        extra: Any arrays, handed on.
        whole: Whether a single group is worked on in one piece. In two it is faster
            unless the result, which then has to be joined, is larger than the values.
    """
    one = group_count(flat.size, size) == 1
    parts = _parts(flat.size, (None if whole else ROW) if one else size)
    if len(parts) == 1:
        return _map_part(flat, scale, extra, fn=fn, part=parts[0])
    done = [_map_part_alone(flat, scale, extra, fn=fn, part=part) for part in parts]
    return _join_alone(*done)


class Part(NamedTuple):
    """Consecutive groups of one width."""

    start: int  # number of the first value
    first: int  # number of the first group
    groups: int
    width: int

    def rows(self, flat: jax.Array) -> jax.Array:
        """The values, ``[groups, width]``."""
        stop = self.start + self.groups * self.width
        return flat[self.start : stop].reshape(self.groups, self.width)


def _parts(n: int, size: int | None) -> list[Part]:
    """The whole groups, and the last one if it is shorter."""
    if size is None or n <= size:
        return [Part(0, 0, 1, n)]
    groups, rest = divmod(n, size)
    whole = Part(0, 0, groups, size)
    return [whole, Part(n - rest, groups, 1, rest)] if rest else [whole]


def _map_part(flat, scale, extra, *, fn, part: Part) -> jax.Array:
    mine = slice(part.first, part.first + part.groups) if scale.size > 1 else slice(1)
    return fn(part.rows(flat), scale[mine, None], part.start, extra).reshape(-1)


def _slices(flat: jax.Array, *, kind: str, part: Part, lanes: int) -> jax.Array:
    """``[groups, lanes]``: each group's slices of ``lanes`` values, combined."""
    rows, (fn, combine, _) = part.rows(flat), FOLDS[kind]
    slices = [fn(rows[:, i : i + lanes]) for i in range(0, part.width, lanes)]
    return functools.reduce(combine, slices)


def _halves(rows: jax.Array, *, kind: str) -> jax.Array:
    combine = FOLDS[kind][1]
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = combine(rows[:, :half], rows[:, half:])
    return rows[:, 0]


def _join(*parts: jax.Array) -> jax.Array:
    return jnp.concatenate(parts)


_join_alone = alone(_join)
_map_part_alone = alone(_map_part, "fn", "part")
_slices_alone = alone(_slices, "kind", "part", "lanes")
_halves_alone = alone(_halves, "kind")


def _fold(flat: jax.Array, size: int | None, kind: str) -> jax.Array:
    return jnp.concatenate(
        [_fold_part(flat, kind, part) for part in _parts(flat.size, size)]
    )


def _fold_part(flat: jax.Array, kind: str, part: Part) -> jax.Array:
    fn, _, whole = FOLDS[kind]
    lanes = LANES
    while part.width > SLICES * lanes:
        lanes *= 2
    if part.width % lanes:
        return whole(fn(part.rows(flat)), axis=1, initial=0)
    rows = _slices_alone(flat, kind=kind, part=part, lanes=lanes)
    return _halves_alone(rows, kind=kind)
