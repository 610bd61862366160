"""Sums and counts of a matrix's columns, as `one_bit` needs them, fast on a CPU."""

import functools

import jax
import jax.numpy as jnp

from parsgd.compressors.groups import ROW, total
from parsgd.compressors.packing import alone

EXACT = 1 << 24  # that float32 counts to
FOLDED = 8  # rows that are added up before columns are
PARTS = {
    "count": lambda v: (v >= 0).astype(jnp.float32),
    # Not the minimum, which drops NaN: one is among the low.
    "high": lambda v: jnp.where(v >= 0, v, 0.0),
    "low": lambda v: jnp.where(v >= 0, 0.0, v),
}


def _column_sums(flat: jax.Array, *, fn: str, width: int) -> jax.Array:
    """Sum of ``fn`` over each of ``width`` columns of a matrix, ``[width]``."""
    if width == 1 and (flat.size == 0 or flat.size % ROW):
        return total(flat, PARTS[fn])[None]
    if width == 1:
        return jnp.sum(_column_sums(flat, fn=fn, width=ROW))[None]
    rows = flat.reshape(-1, width)
    whole = len(rows) - len(rows) % FOLDED
    blocks = rows[:whole].reshape(-1, FOLDED, width)
    ends = [PARTS[fn](rows[i]) for i in range(whole, len(rows))]
    folded = [PARTS[fn](blocks[:, i]) for i in range(FOLDED)]
    sums = functools.reduce(jnp.add, ends, jnp.zeros(width, jnp.float32))
    # XLA on a CPU multiplies by a row of ones faster than it reduces a leading axis,
    # and adds whole rows faster than that.
    ones = jnp.ones(len(blocks), jnp.float32)
    highest = jax.lax.Precision.HIGHEST
    return sums + jnp.matmul(ones, functools.reduce(jnp.add, folded), precision=highest)


def column_counts(flat: jax.Array, *, width: int) -> jax.Array:
    """How many entries of each column are >= 0, ``int32 [width]``."""
    rows = flat.size // width
    if rows > EXACT and width > 1:
        return jnp.sum(flat.reshape(rows, width) >= 0, axis=0, dtype=jnp.int32)
    if rows <= EXACT:
        return column_sums(flat, fn="count", width=width).astype(jnp.int32)
    # In columns of rows, since one float32 could not count them all.
    whole = flat.size - flat.size % ROW
    each = column_sums(flat[:whole], fn="count", width=ROW).astype(jnp.int32)
    rest = jnp.sum(flat[whole:] >= 0, dtype=jnp.int32)
    return (jnp.sum(each) + rest)[None]


# Sums of one array are merged into one loop otherwise, which does not vectorise.
column_sums = alone(_column_sums, "fn", "width")
