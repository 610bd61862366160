"""Quantising codes against numpy, and the variances that their papers promise."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quantizer_oracles as oracles
from hypothesis import given, settings
from quantizer_codes import KEY, close, normal, through

from parsgd import comm
from parsgd.compressors import (
    bf16,
    dynamic_tree_8bit,
    fp8,
    fp16,
    linear_8bit,
    natural,
    one_bit,
    qsgd,
    scaled_sign,
    sign,
    terngrad,
)
from parsgd.compressors.eight_bit import dynamic_tree_values
from parsgd.compressors.random import uniform_bits


@pytest.mark.parametrize("n", [1, 40, 512, 1030, 2048])
@pytest.mark.parametrize("bucket", [5, 64, 512])
@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("levels", [1, 15, 127])
def test_qsgd_follows_its_oracle(n, bucket, norm, levels):
    x = normal((n,))
    code = qsgd(levels=levels, bucket_size=bucket, norm=norm)
    v, u = np.float64(x), oracles.uniform(uniform_bits(KEY, (n,)))
    want = oracles.qsgd(v, u, levels, bucket, norm)
    close(through(code, x), want, edges=2)


@pytest.mark.parametrize("clip", [None, 0.5, 2.5])
def test_terngrad_follows_its_oracle(clip):
    x = normal((2500,))  # two whole rows of what has no groups, and a rest
    v, u = np.float64(x), oracles.uniform(uniform_bits(KEY, x.shape))
    close(through(terngrad(clip=clip), x), oracles.terngrad(v, u, clip), edges=2)


def test_natural_follows_its_oracle():
    x = normal((2000,)) * jnp.exp(3 * normal((2000,), seed=1))
    v = np.float64(x)
    u = np.float64(uniform_bits(KEY, x.shape) >> 9) / 2**23
    np.testing.assert_array_equal(through(natural(), x), oracles.natural(v, u))
    nearest = oracles.natural(v, np.full(v.shape, 0.5))
    np.testing.assert_array_equal(through(natural(rounding="nearest"), x), nearest)


@pytest.mark.parametrize("block", [None, 7, 64, 2048])
def test_8bit_codes_follow_their_oracles(block):
    x = normal((2500,))  # two whole rows of what has no groups, and a rest
    v, u = np.float64(x), oracles.uniform(uniform_bits(KEY, x.shape))
    close(
        through(linear_8bit(block_size=block), x),
        oracles.linear_8bit(v, block),
        edges=2,
    )
    got = through(linear_8bit(block_size=block, rounding="random"), x)
    close(got, oracles.linear_8bit(v, block, u), edges=2)
    x = x * jnp.exp(4 * normal(x.shape, seed=1))  # all decades
    want = oracles.dynamic_tree_8bit(np.float64(x), block)
    close(through(dynamic_tree_8bit(block_size=block), x), want, edges=2)


def test_dynamic_tree_has_256_values():
    table = oracles.dynamic_tree()
    np.testing.assert_allclose(dynamic_tree_values(), table, rtol=1e-14)
    assert len(set(table)) == 256
    x = jnp.asarray(table, jnp.float32)  # each value comes back, from its own code
    payload = dynamic_tree_8bit(block_size=None).encode(x, None)
    np.testing.assert_array_equal(payload.codes, np.arange(256))
    close(dynamic_tree_8bit(block_size=None).decode(payload, x, None), table)


@pytest.mark.parametrize("zero", ["positive", "negative"])
def test_signs_follow_their_oracles(zero):
    x = normal((999,)).at[::7].set(0.0)
    v = np.float64(x)
    for norm in ("l1", "l2"):
        got = through(scaled_sign(zero=zero, norm=norm), x)
        close(got, oracles.scaled_sign(v, zero, norm))
    large = through(scaled_sign(norm="l2"), x * 5e37)  # whose squares leave float32
    close(large, oracles.scaled_sign(v * 5e37, "positive", "l2"))
    want = np.sign(oracles.scaled_sign(v, zero))
    np.testing.assert_array_equal(through(sign(zero=zero), x), want)


def test_casts_follow_their_oracles():
    x = normal((1500,)) * jnp.exp(3 * normal((1500,), seed=1))
    v = np.float64(x)
    close(through(fp16(), x), oracles.rounded(v, 11, 2.0**-24, 65504))
    close(through(bf16(), x), oracles.rounded(v, 8, 0.0, np.inf))
    for name, (precision, smallest, largest) in {
        "e4m3": (4, 2.0**-9, 448),
        "e5m2": (3, 2.0**-16, 57344),
    }.items():
        plain = oracles.rounded(v, precision, smallest, largest)
        close(through(fp8(format=name, scaled=False), x), plain)
        unit = np.float64(np.float32(largest) / np.abs(x).max())
        want = oracles.rounded(v * unit, precision, smallest, largest) / unit
        close(through(fp8(format=name), x), want, edges=2)


UNBIASED = {
    "qsgd": (
        qsgd(levels=3, bucket_size=8),
        lambda v: oracles.qsgd_variance(v, 3, 8, "l2"),
    ),
    "qsgd max": (
        qsgd(levels=2, bucket_size=20, norm="max"),
        lambda v: oracles.qsgd_variance(v, 2, 20, "max"),
    ),
    "terngrad": (
        terngrad(clip=None),
        lambda v: np.abs(v).max() * np.abs(v) - v**2,
    ),
    "natural": (
        natural(),
        lambda v: (
            np.modf(2 * np.frexp(np.abs(v))[0])[0]
            * (1 - np.modf(2 * np.frexp(np.abs(v))[0])[0])
            * 4.0 ** (np.frexp(v)[1] - 1)
        ),
    ),
    "linear_8bit": (
        linear_8bit(rounding="random"),
        lambda v: oracles.qsgd_variance(v, 127, None, "max"),
    ),
}


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_with_the_papers_variance(name):
    code, variance = UNBIASED[name]
    x, draws = normal((24,), seed=5), 20000
    keys = jax.random.split(jax.random.key(0), draws)
    q = np.float64(jax.jit(jax.vmap(lambda key: through(code, x, key)))(keys))
    v = np.float64(x)
    expected = variance(v)
    sigma = np.sqrt(expected / draws)
    assert np.all(np.abs(q.mean(axis=0) - v) <= 5 * sigma + 1e-6)
    np.testing.assert_allclose(
        np.mean((q - v) ** 2, axis=0).sum(), expected.sum(), rtol=0.03
    )
    if name == "natural":
        assert np.all(expected <= v**2 / 8 * (1 + 1e-12))
    if name == "qsgd":
        d, s = 8, 3
        bound = min(d / s**2, np.sqrt(d) / s) * np.sum(v**2)
        assert expected.sum() <= bound
    if name == "terngrad":
        total = np.abs(v).max() * np.abs(v).sum() - np.sum(v**2)
        np.testing.assert_allclose(expected.sum(), total)


@functools.cache
def moments(name):
    """Mean and variance of each entry over 2,000 draws, compiled once for each code."""
    code, _ = UNBIASED[name]

    def of(x, key):
        keys = jax.random.split(key, 2000)
        q = jax.vmap(lambda key: through(code, x, key))(keys)
        return q.mean(axis=0), q.var(axis=0)

    return jax.jit(of)


@pytest.mark.parametrize("name", UNBIASED)
@settings(max_examples=12, deadline=None, derandomize=True)  # rare draws are no faults
@given(
    seed=st.integers(0, 2**16),
    tail=st.sampled_from([0, 1, 4]),  # powers of normal numbers; 0: signs
    zeros=st.integers(0, 23),
    exponent=st.integers(-30, 30),
)
def test_unbiased_whatever_the_array(name, seed, tail, zeros, exponent):
    x = np.random.default_rng(seed).normal(size=24)
    x = np.sign(x) * np.abs(x) ** tail * 2.0**exponent
    x[:zeros] = 0
    x = x.astype(np.float32)
    mean, variance = moments(name)(jnp.array(x), jax.random.key(seed))
    v = x.astype(np.float64)
    expected = UNBIASED[name][1](v)
    size = np.abs(v).max()
    sigma = np.sqrt(expected / 2000)
    assert np.all(np.abs(mean - v) <= 6 * sigma + 1e-5 * size)
    assert np.all(variance <= 4 * expected + 1e-2 * size**2)
    assert not np.any(mean[:zeros])


def test_terngrad_with_clipping_is_unbiased_for_what_it_clips():
    code, x = terngrad(clip=1.0), normal((24,), seed=5)
    keys = jax.random.split(jax.random.key(0), 5000)
    q = np.float64(jax.jit(jax.vmap(lambda key: through(code, x, key)))(keys))
    v = oracles.clipped(np.float64(x), 1.0)
    assert np.abs(v - x).max() > 0.1
    sigma = np.sqrt((np.abs(v).max() * np.abs(v) - v**2) / len(keys))
    assert np.all(np.abs(q.mean(axis=0) - v) <= 5 * sigma + 1e-6)


def test_one_bit_columns_do_not_touch_each_other():
    x = normal((40, 6))
    bad = through(one_bit(), x.at[3, 2].set(jnp.nan))
    good = through(one_bit(), x)
    others = np.arange(6) != 2
    np.testing.assert_array_equal(bad[:, others], good[:, others])


def test_one_bit_levels_are_the_means_of_each_sign():
    x = normal((65, 9)).at[0].set(0.0)
    v, q = np.float64(x), np.zeros((65, 9))
    for j in range(9):
        for part in (v[:, j] >= 0, v[:, j] < 0):
            q[part, j] = v[part, j].mean()
    close(through(one_bit(), x), q)
    q = np.where(v >= 0, v[v >= 0].mean(), v[v < 0].mean())
    close(through(one_bit(levels="leaf"), x), q)


@pytest.mark.parametrize("share", [False, True])
def test_terngrad_shares_the_scale(share):
    code = terngrad(clip=None, share_scale=share)
    x = normal((3, 64)) * jnp.array([[1.0], [2.0], [5.0]])
    keys = jax.random.split(KEY, 3)
    payload = jax.vmap(code.encode, axis_name=comm.LANES)(x, keys)
    own = jnp.max(jnp.abs(x), axis=1, keepdims=True)
    want = jnp.broadcast_to(own.max(), own.shape) if share else own
    np.testing.assert_array_equal(payload.scale, want)


def test_terngrad_clips_at_each_workers_own_limit_before_it_shares_the_scale():
    code = terngrad(clip=0.5, share_scale=True)
    x = normal((3, 64)) * jnp.array([[1.0], [2.0], [5.0]])
    keys = jax.random.split(KEY, 3)
    through_all = jax.vmap(
        lambda x, key: code.decode(code.encode(x, key), x, None), axis_name=comm.LANES
    )
    v = np.stack([oracles.clipped(np.float64(row), 0.5) for row in x])
    s = np.abs(v).max()
    for q, row, key in zip(through_all(x, keys), v, keys, strict=True):
        u = oracles.uniform(uniform_bits(key, (64,)))
        close(q, s * oracles.up_or_down(row / s, u), edges=2)
