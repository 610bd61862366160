"""Noise in one coordinate of a hundred: the toy problem of the signSGD paper.

``f = |x|^2 / 2``, gradients are x, and ``x + N(0, 100^2)`` in the first coordinate.
There SGD of rate a is an autoregression. It forgets its start as ``(1 - a)^t``, and in
the long run ``E f = a sigma^2 / (2 (2 - a))``, with W workers a W-th of it. A sign is
+1 with the probability ``Phi(x / sigma)``, on average ``sqrt(2 / pi) x / sigma``, so
signs of rate a forget as ``(1 - sqrt(2 / pi) a / sigma)^t``, over a hundred times more
slowly, and end at ``sqrt(pi / 2) a sigma / 4``. Where both end at the same value signs
take pi / 2 times the steps: this noise is not what feedback is needed for, the
counter-examples in `test_compressed_sgd` are.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parsgd
from parsgd import comm

SIGMA, SEEDS = 100.0, 128
REDUCE = parsgd.all_reduce()
MEAN_SGD = lambda rate: parsgd.data_parallel(optax.sgd(rate), reducer=REDUCE)
FEEDBACK = lambda rate: parsgd.ef_sign_sgd(optax.sgd(rate))
SIGNS = lambda rate: parsgd.sign_sgd_majority(optax.sgd(rate))


def paths(strategy, steps, *, first=0.0, workers=1):
    """What x is after every step, ``[SEEDS, steps, 10, 10]``; it starts at 0, but
    for its first entry."""
    start = jnp.zeros((10, 10)).at[0, 0].set(first)

    def worker(key):
        key = jax.random.fold_in(key, comm.rank())
        noise = SIGMA * jax.random.normal(key, (steps,))

        def step(carry, noise):
            x, state = carry
            x, state = strategy.local(x.at[0, 0].add(noise), state, x)
            return (x, state), x

        return jax.lax.scan(step, (start, strategy.init(start)), noise)[1]

    lanes = jax.vmap(worker, None, axis_name=comm.LANES, axis_size=workers)
    run = jax.jit(jax.vmap(lambda key: lanes(key)[0]))
    return np.asarray(run(jax.random.split(jax.random.key(0), SEEDS)), np.float64)


def value(x):
    return np.square(x).sum((-1, -2)).mean() / 2


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("method", [MEAN_SGD, FEEDBACK], ids=["sgd", "ef_sign_sgd"])
def test_sgd_and_feedback_end_where_theory_says(method, workers):
    rate, steps = 0.02, 1000
    x = paths(method(rate), steps, workers=workers)
    ends = rate * SIGMA**2 / (2 * (2 - rate)) / workers
    assert value(x[:, 200:]) == pytest.approx(ends, rel=0.06)


def noisy(method, rate):
    """Its first coordinate from 40 on, ``[SEEDS, steps]``."""
    return paths(method(rate), 2400, first=40.0)[..., 0, 0]


def test_signs_of_the_same_rate_forget_a_hundred_times_more_slowly():
    rate = 0.01
    signs, plain = noisy(SIGNS, rate), noisy(MEAN_SGD, rate)
    left = 40 * (1 - np.sqrt(2 / np.pi) * rate / SIGMA) ** 2400
    assert left > 30 and signs[:, -1].mean() == pytest.approx(left, abs=0.5)
    assert abs(plain[:, -800:].mean()) < 1


def test_signs_that_end_where_sgd_does_are_slower_by_half_of_pi():
    rate = 0.01
    equal = np.sqrt(2 / np.pi) * SIGMA * rate  # the rate that ends at the same value
    for x, slower in ((noisy(MEAN_SGD, rate), 1), (noisy(SIGNS, equal), np.pi / 2)):
        after = round(slower / rate)
        assert x[:, after - 1].mean() == pytest.approx(40 / np.e, abs=1.5)
        ends = np.square(x[:, 800:]).mean() / 2
        assert ends == pytest.approx(rate * SIGMA**2 / 4, rel=0.08)
