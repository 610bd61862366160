"""The k largest of an array, in the way of long arrays too."""

import contextlib
import functools

import jax
import numpy as np
import pytest
import sparse_oracles as oracles
from sparse_codes import normal
from test_comm import over

from parsgd.compressors import select as selection


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def choose(x, k, sample=selection.SAMPLE, sampled=False):
    """`largest`; arrays longer than ``sample`` take the way of the large ones."""
    with small_samples(sample):
        return selection.largest(x, k, sampled=sampled)


@contextlib.contextmanager
def small_samples(size):
    old, selection.SAMPLE = selection.SAMPLE, size
    try:
        yield
    finally:
        selection.SAMPLE = old


def sampled(n):
    """A mask of what a sample of 64 sees."""
    with small_samples(64):
        return np.isin(np.arange(n), selection.sampled_indices(n))


PLACES = [("vmap", 1, 3), ("vmap", 1, 4), ("shard_map", 4, 1), ("shard_map", 2, 2)]
HARD = {
    "normal": lambda n: normal(n),
    "heavy tails": lambda n: normal(n) ** 5,
    "all equal": lambda n: np.full(n, -2.0, np.float32),
    "zero": lambda n: np.zeros(n, np.float32),
    "few values": lambda n: np.round(normal(n)).astype(np.float32),
    "rising": lambda n: np.arange(n, dtype=np.float32),
    "falling": lambda n: -np.arange(n, 0, -1, dtype=np.float32),
    "sample sees zeros": lambda n: normal(n) * ~sampled(n),
    "sample sees the largest": lambda n: (normal(n) * (1 + 99 * sampled(n))).astype(
        "f"
    ),
    "one spike": lambda n: np.where(np.arange(n) == n - 1, 1e30, 1e-30).astype("f"),
    "mostly NaN": lambda n: np.where(np.arange(n) % 9, np.nan, normal(n)).astype("f"),
    "all NaN": lambda n: np.full(n, np.nan, np.float32),
    "NaN and inf": lambda n: np.where(
        np.arange(n) % 50 == 1, np.nan, np.where(np.arange(n) % 70 == 2, np.inf, 1)
    ).astype(np.float32),
    "subnormal": lambda n: (normal(n) * 1e-40).astype(np.float32),
}


@pytest.mark.parametrize("n", [65, 449, 4000])
@pytest.mark.parametrize("hard", HARD)
def test_large_arrays_choose_as_the_oracle(hard, n):
    x = HARD[hard](n)
    for k in (1, n // 10, n - 1):
        got = choose(x, k, 64)
        np.testing.assert_array_equal(got, oracles.largest(x, k), str(k))


@pytest.mark.parametrize("n", [65_537, 65_536 * 3 - 1, 1 << 20, 6_900_000])
def test_a_sample_has_one_entry_of_each_part_and_no_pattern(n):
    index = np.asarray(selection.sampled_indices(n)).astype(np.int64)
    ends = np.arange(selection.SAMPLE + 1) * n // selection.SAMPLE
    assert (ends[:-1] <= index).all() and (index < ends[1:]).all()
    if n % 1024 == 0:  # columns of a matrix that is stored row by row
        seen = np.bincount(index % 1024, minlength=1024)
        assert seen.min() > 0 and seen.max() < 4 * seen.mean()


@pytest.mark.parametrize("hard", HARD)
def test_sampled_choice_sends_the_largest_it_knows(hard):
    n, k = 4000, 40
    x = HARD[hard](n)
    got = np.asarray(choose(x, k, 64, True))
    assert len({*got.tolist()}) == k and (np.diff(got) > 0).all()
    numbers = np.count_nonzero(~np.isnan(x))
    assert np.count_nonzero(~np.isnan(x[got])) == min(k, numbers)
    size = np.abs(np.where(np.isnan(x), 0, x))
    assert size[got].max() == size.max()


@pytest.mark.parametrize("hard", ["normal", "few values", "falling", "one spike"])
def test_sampled_choice_is_exact_where_the_sample_is_like_the_rest(hard):
    x = HARD[hard](200_001)
    got = choose(x, 2000, sampled=True)
    np.testing.assert_array_equal(got, oracles.largest(x, 2000))


def test_large_arrays_under_vmap_scan_and_shard_map():
    rows = np.stack([make(1500) for make in HARD.values()])
    want = [oracles.largest(x, 30) for x in rows]
    pick = lambda x: choose(x, 30, 64)
    np.testing.assert_array_equal(jax.jit(jax.vmap(pick))(rows), want)
    np.testing.assert_array_equal(jax.jit(lambda x: jax.lax.map(pick, x))(rows), want)
    for place in PLACES[1:]:
        some = rows[:4]
        np.testing.assert_array_equal(over(pick, place, some), want[:4])
