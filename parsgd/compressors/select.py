"""Indices of the k largest entries: exact, without sorting.

Sorting a whole array to keep 1 % of it is what makes ``lax.top_k`` slow. Here::

    sample     the (s k / n)-th largest of s entries bounds the k-th largest of n
    narrow     count the entries above the bound; move it until k to k + k/4 are left
    compact    list the indices of those, the candidates
    finish     find the k-th largest candidate bit by bit; keep what is above it

Every step reads whole arrays in order, and masks are held as 32-bit words. The bound
is nearly always right at once. If not, because the sample was not like the rest, it is
found by bisection; if there are too many ties, the last index that may still be taken
is found by bisection too. Both are loops of few passes and no branches, so that the
result is exact under vmap as well, where all lanes make as many passes as the slowest.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

# Entries to sample; shorter arrays are their own candidates. The share of an array's
# entries above the bound it gives has a standard deviation of 0.2 % or less.
SAMPLE = 1 << 16
FEW = 32  # of a short array, up to n / FEW are found faster by XLA's own search
WORD = 32
BLOCK = 4096  # entries that one pass of running sums takes
TOP = 0xFFFFFFFF

Order: TypeAlias = Callable[[jax.Array], jax.Array]
Combine: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]


def magnitude(x: jax.Array) -> jax.Array:
    """A ``uint32`` for each float32 that orders them by ``|x|``; NaN below all."""
    bits = lax.bitcast_convert_type(jnp.abs(x), jnp.uint32)
    infinity = jnp.uint32(0x7F800000)
    return jnp.where(bits > infinity, jnp.uint32(0), bits + 1)


def largest(
    x: jax.Array, k: int, *, order: Order = magnitude, sampled: bool = False
) -> jax.Array:
    """Indices of the k entries that come first in an order, ascending.

    Of equal entries those with the lower index come first, as in ``lax.top_k``.

    Args:
        x: ``[n]``.
        k: How many, 0 to n.
        order: Elementwise, to ``uint32`` below ``2**32 - 1``; larger comes first.
        sampled: Trust the sample where its bound leaves fewer than k entries: take
            them all, and fill up with the first ones below it. Otherwise exact.

    Returns:
        ``int32 [k]``.
    """
    n = x.size
    if k in (0, n):
        return jnp.arange(k, dtype=jnp.int32)
    if n <= SAMPLE and k <= n // FEW and order is magnitude:
        # NaN would come first.
        return jnp.sort(lax.top_k(jnp.where(jnp.isnan(x), -1.0, jnp.abs(x)), k)[1])
    if n <= SAMPLE:
        return _finish(order(x), k)
    # Room for the sample's error: four standard deviations or more either way.
    room = min(n, k + max(k // 4, n // 256))
    words = _narrow(x, k, room, order, sampled)
    candidates = positions(words, room)
    count = jnp.sum(lax.population_count(words), dtype=jnp.int32)
    real = jnp.arange(room) < count
    rank = order(x[jnp.minimum(candidates, n - 1)])
    return candidates[_finish(jnp.where(real, rank + 1, 0), k)]


def sampled_indices(n: int) -> jax.Array:
    """One index of each of `SAMPLE` equal parts of 0..n-1, ``int32``.

    Where in its part is scrambled: at equal distances, rows of 2^m entries would give
    one column.
    """
    whole, rest = divmod(n, SAMPLE)
    i = jnp.arange(SAMPLE, dtype=jnp.uint32)
    within = (i * jnp.uint32(2654435761) >> 16) % whole  # Knuth's multiplier
    return (i * whole + i * rest // SAMPLE + within).astype(jnp.int32)


def positions(words: jax.Array, size: int) -> jax.Array:
    """Where the first ``size`` set bits are, ascending: ``int32 [size]``.

    Args:
        words: ``uint32 [m]``; bit i of word j is position 32 j + i.
        size: How many; positions past the last set bit are arbitrary.
    """
    ones = lax.population_count(words).astype(jnp.int32)
    start = running(ones, jnp.add) - ones
    number = jnp.arange(len(words), dtype=jnp.int32)
    # A word's first slot knows the word (of those that start there, only the last has
    # bits), and the slots after it learn it from there.
    word = jnp.zeros(size, jnp.int32).at[start].max(number, mode="drop")
    word = running(word, jnp.maximum)
    nth = jnp.arange(size, dtype=jnp.int32) - start[word]
    return WORD * word + _set_bit(words[word], nth)


def pack_words(mask: jax.Array) -> jax.Array:
    """``bool [n]`` to ``uint32 [ceil(n / 32)]``, first entry in the lowest bit."""
    rows = jnp.pad(mask, (0, -mask.size % WORD)).reshape(-1, WORD)
    weight = jnp.left_shift(jnp.uint32(1), jnp.arange(WORD, dtype=jnp.uint32))
    return jnp.sum(jnp.where(rows, weight[None], 0), axis=1, dtype=jnp.uint32)


def running(x: jax.Array, combine: Combine) -> jax.Array:
    """Inclusive running sums or maxima along the last axis, ``int32`` of 0 or more.

    Long ones in two levels: ``sqrt(m)`` runs side by side, which vectorises, then the
    ends of the runs.

    Args:
        x: ``[..., m]``.
        combine: ``jnp.add`` or ``jnp.maximum``.
    """
    m = x.shape[-1]
    if m <= BLOCK:
        reduce = lax.cumsum if combine is jnp.add else lax.cummax
        return reduce(x, axis=x.ndim - 1)
    length = math.isqrt(m)
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -m % length)])
    runs = jnp.moveaxis(padded.reshape(*x.shape[:-1], -1, length), -1, 0)

    def step(total, row):
        total = combine(total, row)
        return total, total

    ends, within = lax.scan(step, jnp.zeros_like(runs[0]), runs)
    before = running(ends, combine)[..., :-1]
    before = jnp.pad(before, [(0, 0)] * (x.ndim - 1) + [(1, 0)])
    out = jnp.moveaxis(combine(within, before[None]), 0, -1)
    return out.reshape(padded.shape)[..., :m]


def _narrow(x: jax.Array, k: int, room: int, order: Order, sampled: bool) -> jax.Array:
    """A mask, in words, of k to ``room`` entries among which are the first k."""
    n = x.size

    def count(words):
        return jnp.sum(lax.population_count(words), dtype=jnp.int32)

    def missed(words):
        return (count(words) < k) | (count(words) > room)

    part = order(x[sampled_indices(n)])
    bound = _kth(part, max(1, round((k + room) / 2 / n * SAMPLE)))

    # The barriers keep the compiler from taking `order(x)` out of the loops: written to
    # memory, it costs as much as several passes that need none.

    # At least k entries are >= low, fewer than k are >= high.
    def probe(low, high, at):
        at, y = lax.optimization_barrier((at, x))
        words = pack_words(order(y) >= at)
        enough = count(words) >= k
        return jnp.where(enough, at, low), jnp.where(enough, high, at), words

    def bisect(state):
        low, high, _ = state
        middle = low + (high - low) // 2
        # Entries of the lowest rank are no numbers: never fill up with those early.
        return probe(low, high, jnp.where(low == 0, jnp.uint32(1), middle))

    def unsettled(state):
        low, high, words = state
        go_on = missed(words) & (high - low > 1)
        return go_on & ~((low == 1) & (high == bound)) if sampled else go_on

    first = probe(jnp.uint32(0), jnp.uint32(TOP), bound)
    low, high, words = lax.while_loop(unsettled, bisect, first)

    # Fewer than k entries below index `start`, at least k below `stop`.
    def cut(state):
        start, stop, _ = state
        middle = start + (stop - start) // 2
        end, lower, upper, y = lax.optimization_barrier((middle, low, high, x))
        rank, index = order(y), lax.iota(jnp.int32, n)
        words = pack_words((rank >= upper) | ((rank >= lower) & (index < end)))
        enough = count(words) >= k
        start, stop = jnp.where(enough, start, middle), jnp.where(enough, middle, stop)
        return start, stop, words

    everything = (jnp.int32(0), jnp.int32(n), words)
    return lax.while_loop(lambda state: missed(state[2]), cut, everything)[2]


def _finish(rank: jax.Array, k: int) -> jax.Array:
    """Positions of the k largest ranks, ties to the lower index, ascending."""
    bound = _kth(rank, k)
    both = jnp.stack([rank > bound, rank == bound])
    above, equal = running(both.astype(jnp.int32), jnp.add)
    # How many are chosen up to each entry; those that add one are.
    chosen = above + jnp.minimum(equal, k - above[-1])
    before = jnp.pad(chosen[:-1], (1, 0))
    slot = jnp.where(chosen > before, before, k)
    number = jnp.arange(rank.size, dtype=jnp.int32)
    return jnp.zeros(k, jnp.int32).at[slot].set(number, mode="drop")


def _kth(rank: jax.Array, k: int) -> jax.Array:
    """The k-th largest of ``uint32 [m]``, from its highest bit to its lowest."""

    def bit(number, found):
        more = found | jnp.left_shift(jnp.uint32(1), jnp.uint32(31 - number))
        return jnp.where(jnp.sum(rank >= more, dtype=jnp.int32) >= k, more, found)

    return lax.fori_loop(0, 32, bit, jnp.uint32(0))


def _set_bit(word: jax.Array, nth: jax.Array) -> jax.Array:
    """Position of the n-th set bit (from 0) of each word, by halving."""
    position = jnp.zeros_like(nth)
    for width in (16, 8, 4, 2, 1):
        low = word & jnp.uint32((1 << width) - 1)
        ones = lax.population_count(low).astype(jnp.int32)
        upper = nth >= ones
        nth = jnp.where(upper, nth - ones, nth)
        word = jnp.where(upper, word >> width, low)
        position = jnp.where(upper, position + width, position)
    return position
