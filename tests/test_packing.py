"""Bits without gaps, random numbers, and rounding to whole ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quantizer_oracles as oracles
from quantizer_codes import KEY

from parsgd.compressors.packing import pack, unpack
from parsgd.compressors.random import uniform_bits
from parsgd.compressors.rounding import round_clipped, round_randomly

# Whole and half numbers, beyond every range, and next to nothing.
SPECIAL = [0.0, -0.0, 1, -1, 0.5, -0.5, 1e9, -1e9, 3e38, -3e38, np.inf, -np.inf, 1e-40]


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
    whole = uniform_bits(KEY, (50,))
    np.testing.assert_array_equal(uniform_bits(KEY, (20,), 30), whole[30:])
    np.testing.assert_array_equal(uniform_bits(KEY, (5, 10)).reshape(-1), whole)


@pytest.mark.parametrize("top", [1, 2, 3, 15, 16, 127])
def test_rounds_to_nearest_within_the_range(top):
    rng = np.random.default_rng(top)
    x = np.float32(np.concatenate([rng.uniform(-2 * top, 2 * top, 500), SPECIAL]))
    want = np.clip(np.round(x), -top, top)  # half to even
    np.testing.assert_array_equal(
        jax.jit(round_clipped, static_argnums=1)(x, top), want
    )
    assert np.abs(round_clipped(jnp.float32([np.nan, -np.nan]), top)).max() <= top


def test_a_product_is_rounded_alike_wherever_it_is_computed():
    """What is sent and what is taken off a residual may come of two loops."""
    x = np.random.default_rng(0).uniform(-127, 127, 1 << 16).astype(np.float32)
    scale = np.float32(0.7)
    joined = jax.jit(lambda x, scale: round_clipped(x * scale, 127, fraction=15))
    apart = round_clipped(jnp.asarray(x * scale), 127, fraction=15)
    np.testing.assert_array_equal(joined(x, scale), apart)


@pytest.mark.parametrize("top", [1, 2, 3, 15, 16, 127])
def test_rounds_up_as_often_as_the_fraction_says(top):
    x = np.float32([top - 0.3, 0.25, 1e-3, -0.75, 0.1 - top, *SPECIAL])
    draws = 40000
    many = jnp.broadcast_to(jnp.array(x)[:, None], (x.size, draws))
    got = np.asarray(jax.jit(round_randomly, static_argnums=1)(many, top, KEY))
    exact = np.clip(np.float64(x), -top, top)
    low = np.floor(exact)[:, None]
    assert np.all((got == low) | (got == low + (exact[:, None] != low)))
    spread = np.sqrt((exact % 1) * (1 - exact % 1) / draws)
    assert np.all(np.abs(got.mean(axis=1) - exact) <= 5 * spread + 2.0**-15)
    assert np.abs(round_randomly(jnp.float32([np.nan] * 9), top, KEY)).max() <= top
