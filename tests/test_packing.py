"""Bits without gaps, and the random numbers that codes draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quantizer_oracles as oracles
from quantizer_codes import KEY

from parsgd.compressors.packing import pack, unpack
from parsgd.compressors.random import uniform, uniform_bits


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 9, 13, 17, 32])
@pytest.mark.parametrize("n", [0, 1, 8, 9, 100])
def test_packs_without_gaps(width, n):
    high = 2**width
    codes = np.random.default_rng(n).integers(0, high, n, np.uint64).astype(np.uint32)
    got = pack(jnp.asarray(codes), width)
    np.testing.assert_array_equal(got, oracles.packed(codes, width))
    assert got.size == width * -(-n // 8)
    np.testing.assert_array_equal(unpack(got, width, n), codes)


def test_a_code_that_is_too_large_stays_in_its_place():
    got = unpack(pack(jnp.array([1, 255, 2], jnp.uint8), 3), 3, 3)
    np.testing.assert_array_equal(got, [1, 7, 2])
    with pytest.raises(ValueError, match="1 to 32 bits"):
        pack(jnp.array([1]), 33)


def test_random_bits_are_uniform_and_independent():
    n = 1 << 16
    draws = [np.asarray(uniform_bits(jax.random.key(s), (n,))) for s in range(4)]
    draws.append(np.asarray(uniform_bits(jax.random.fold_in(KEY, 1), (n,))))
    for words in draws:
        for shift in (0, 8, 16, 24):
            counts = np.bincount((words >> shift) & 255, minlength=256)
            chi = np.sum((counts - n / 256) ** 2) / (n / 256)
            assert 150 < chi < 380  # 255 degrees of freedom: about 5.5 sigma
        bits = np.unpackbits(words.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 5 / np.sqrt(4 * bits.size)
    unit = np.array([w / 2.0**32 - 0.5 for w in draws]) * np.sqrt(12)
    for lag in (0, 1, 2, 8, 512):  # between streams, and within one
        mixed = unit[:, : n - lag] @ unit[:, lag:].T / (n - lag)
        expected = np.eye(len(unit)) if lag == 0 else 0
        assert np.abs(mixed - expected).max() < 6 / np.sqrt(n)


def test_a_part_draws_what_the_whole_draws():
    whole = uniform(KEY, (50,))
    np.testing.assert_array_equal(uniform(KEY, (20,), 30), whole[30:])
    assert whole.min() >= 0 and whole.max() < 1
    np.testing.assert_array_equal(uniform(KEY, (5, 10)).reshape(-1), whole)
