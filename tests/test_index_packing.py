"""Sets of indices in the narrowest of three forms."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import sparse_oracles as oracles
from hypothesis import given, settings
from sparse_codes import halves

from parsgd.compressors import payload_bytes, random_k, select as selection, top_k
from parsgd.compressors.index_packing import (
    form,
    index_bytes,
    pack_indices,
    unpack_indices,
)


def test_every_set_bit_is_found():
    for density in (0.0, 0.01, 0.5, 1.0):
        mask = np.random.default_rng(0).random(1000) < density
        words = selection.pack_words(jnp.asarray(mask))
        assert words.shape == (32,) and words.dtype == jnp.uint32
        where = np.flatnonzero(mask)
        got = selection.positions(words, 1000)[: len(where)]
        np.testing.assert_array_equal(got, where)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_indices_come_back_from_the_narrowest_form(data):
    n = data.draw(st.sampled_from([1, 2, 3, 17, 100, 1000, 5000]))
    k = data.draw(st.sampled_from(sorted({0, 1, 2, n // 50, n // 5, n // 2, n})))
    k = min(k, n)
    seed = data.draw(st.integers(0, 99))
    index = np.sort(np.random.default_rng(seed).permutation(n)[:k]).astype(np.int32)
    packed = jax.jit(pack_indices, static_argnums=1)(index, n)
    assert packed.dtype == jnp.uint8
    assert packed.size == index_bytes(k, n) == oracles.index_bytes(k, n)
    found = jax.jit(unpack_indices, static_argnums=(1, 2))(packed, k, n)
    np.testing.assert_array_equal(found, index)
    if 0 < k < n and form(k, n).unary:
        lower, upper = oracles.elias_fano_bits(index.tolist(), form(k, n).width)
        bits = oracles.bytes_of(lower) + oracles.bytes_of(upper)
        # The bitmap has room for the largest index, with zeros after the last one.
        assert packed.tolist() == bits + [0] * (packed.size - len(bits))


def test_one_percent_of_seven_million_indices_take_nine_bits():
    n, k = 6_900_000, 69_000
    assert 8 * index_bytes(k, n) / k < 8.6
    like = jax.ShapeDtypeStruct((n,), jnp.float32)
    assert payload_bytes(top_k(), like) == 4 * k + oracles.index_bytes(k, n)
    assert payload_bytes(random_k(), like) == 4 * k
    half = payload_bytes(top_k(values=halves()), like)
    assert half == 2 * k + oracles.index_bytes(k, n)
