"""1-bit Adam, 0/1 Adam and DGC's phases, against their oracles."""

import functools

import jax
import numpy as np
import optax
import pytest
import reducer_oracles as oracles
from test_placements import engine
from test_strategies import problem, simulate

from parsgd.compressors import one_bit, random_k, scaled_sign, sign, terngrad
from parsgd.strategies import dgc_sgd, one_bit_adam, sync_sgd, zero_one_adam

RATES = [0.05 / (1 + 0.2 * t) for t in range(20)]
MOMENTS = {"b1": 0.8, "b2": 0.9, "eps": 1e-6}


def rate(count):
    return 0.05 / (1 + 0.2 * count)


def wide(x):
    return {k: v.astype(np.float64) for k, v in x.items()}


def gradient(c):
    return lambda x, t, w: {k: np.tanh(v - c[k][t, w]) for k, v in x.items()}


def close(got, want):
    for k in want:
        for w in range(len(got[k])):
            np.testing.assert_allclose(got[k][w], want[k], rtol=2e-4, atol=2e-5)


def without_gradient(x, c, rows):
    """The problem whose first rows have a gradient of tanh(0)."""
    for k, v in x.items():
        c[k][:, :, :rows] = v[:rows]


@pytest.mark.parametrize("dead", [0, 1, 2])
@pytest.mark.parametrize("correct", [False, True])
@pytest.mark.parametrize("workers", [3, 4])
def test_one_bit_adam_follows_its_oracle(workers, correct, dead):
    x, c = problem(workers, 12)
    without_gradient(x, c, dead)
    ours = simulate(
        one_bit_adam(rate, **MOMENTS, warmup_steps=4, bias_correction=correct),
        x, c, workers=workers, h=1, optimizer_steps=12,
    )  # fmt: skip
    theirs = oracles.one_bit_adam(
        wide(x), gradient(wide(c)), workers=workers, steps=12, rates=RATES,
        freeze=4, correct=correct, **MOMENTS,
    )  # fmt: skip
    for got, want in zip(ours, theirs, strict=True):
        close(got, want)


def test_one_bit_adam_with_its_papers_code_follows_its_oracle():
    x, c = problem(3, 12)
    without_gradient(x, c, 1)
    ours = simulate(
        one_bit_adam(
            rate, **MOMENTS, warmup_steps=4, compressor=scaled_sign(norm="l2")
        ),
        x, c, workers=3, h=1, optimizer_steps=12,
    )  # fmt: skip
    theirs = oracles.one_bit_adam(
        wide(x), gradient(wide(c)), workers=3, steps=12, rates=RATES, freeze=4,
        correct=False, exchange=functools.partial(oracles.OneBitAllReduce, norm2=True),
        **MOMENTS,
    )  # fmt: skip
    for got, want in zip(ours, theirs, strict=True):
        close(got, want)


@pytest.mark.parametrize("code", [sign(), terngrad(), random_k(scaled=True)])
@pytest.mark.parametrize("two_sided", [False, True])
def test_B16_codes_whose_residual_would_grow_are_refused(code, two_sided):
    options = {"compressor": code, "two_sided": two_sided}
    with pytest.raises(ValueError, match=r"one_bit_adam with .*grow without bound"):
        one_bit_adam(0.1, warmup_steps=1, **options)
    with pytest.raises(ValueError, match=r"zero_one_adam with .*grow without bound"):
        zero_one_adam(0.1, kappa=2, freeze_step=6, double_steps=2, **options)


@pytest.mark.parametrize("dead", [0, 2])
@pytest.mark.parametrize("workers", [3, 4])
def test_zero_one_adam_follows_its_oracle(workers, dead):
    x, c = problem(workers, 16)
    without_gradient(x, c, dead)
    algorithm = zero_one_adam(
        rate, **MOMENTS, kappa=2, freeze_step=6, double_steps=2, max_interval=4
    )
    ours = list(simulate(algorithm, x, c, workers=workers, h=1, optimizer_steps=16))
    theirs = dict(oracles.zero_one_adam(
        wide(x), gradient(wide(c)), workers=workers, steps=16, rates=RATES,
        sync={2, 3, 4, 5, 6, 7, 9, 13, 15}, variance={3, 5}, dense=2, **MOMENTS,
    ))  # fmt: skip
    meets = [0, 1, 3, 5, 6, 7, 9, 13, 15]
    for got, t in zip(ours, meets, strict=True):
        close(got, theirs[t])


def test_zero_one_adam_stores_what_workers_share_once():
    """A momentum of each worker's own would make all of them store parameters."""
    algorithm = zero_one_adam(0.1, kappa=4, freeze_step=4, double_steps=1)
    run, _ = engine(algorithm, 4, "vmap")
    shared = run.shared
    assert all(jax.tree.leaves((shared.params, shared.strategy.mu, shared.strategy.nu)))
    assert not any(shared.strategy.error.values())


@pytest.mark.parametrize(
    "make",
    [
        lambda: one_bit_adam(rate, warmup_steps=4),
        lambda: zero_one_adam(rate, kappa=2, freeze_step=6, double_steps=2),
    ],
)
def test_parameters_without_a_gradient_stay_where_they_are(make):
    x, c = problem(3, 12)
    without_gradient(x, c, 1)
    *_, end = simulate(make(), x, c, workers=3, h=1, optimizer_steps=12)
    for k, v in x.items():
        for w in range(3):
            np.testing.assert_allclose(end[k][w][0], v[0], rtol=1e-6)
            assert np.abs(end[k][w][1:] - v[1:]).max() > 0.1


@pytest.mark.parametrize("code", [one_bit(levels="leaf"), scaled_sign()])
@pytest.mark.parametrize("two_sided", [False, True])
def test_parameters_without_a_gradient_dilute_no_level(code, two_sided):
    """A parameter goes up as fast as down, whatever part of the array is dead."""
    x = {"w": np.zeros((10, 2), np.float32)}
    c = {"w": np.zeros((12, 3, 10, 2), np.float32)}
    ends = []
    for to in (4.0, -4.0):
        c["w"][:, :, 0] = to
        method = one_bit_adam(
            0.1, warmup_steps=2, compressor=code, two_sided=two_sided
        )  # fmt: skip
        *_, end = simulate(method, x, c, workers=3, h=1, optimizer_steps=12)
        assert not np.any(end["w"][:, 1:])
        ends.append(end["w"][:, 0])
    np.testing.assert_allclose(ends[0], -ends[1], rtol=1e-5)
    assert np.abs(ends[0]).min() > 0.5


def test_dense_one_bit_adam_is_adam():
    x, c = problem(4, 6)
    options = {"workers": 4, "h": 1, "optimizer_steps": 6}
    ours = one_bit_adam(0.01, warmup_steps=6, bias_correction=True)
    *_, a = simulate(ours, x, c, **options)
    *_, b = simulate(sync_sgd(optax.adam(0.01)), x, c, **options)
    for k in a:
        np.testing.assert_allclose(a[k], b[k], rtol=1e-5, atol=1e-6)


def test_dgc_refuses_a_second_momentum():
    phases = dgc_sgd(optax.sgd(0.1, 0.9), warmup_steps=8)
    with pytest.raises(ValueError, match="plain SGD"):
        phases[0].strategy.init({"w": np.ones((2, 2), np.float32)})


def test_intervals_of_0_1_adam_may_be_numpys_numbers():
    steps = {"freeze_step": 64, "double_steps": 64}
    plain, other = (
        zero_one_adam(1e-3, max_interval=kind(16), **steps) for kind in (int, np.int64)
    )
    assert [p[::2] for p in plain] == [p[::2] for p in other]
