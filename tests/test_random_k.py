"""Random-k: shared indices, and what its papers promise in expectation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sparse_codes import normal
from test_comm import over
from test_largest import PLACES

from parsgd.compressors import random_k
from parsgd.reducers import compressed_all_reduce


def draws(code, x, count):
    keys = jax.random.split(jax.random.key(7), count)
    both = lambda key: code.decode(code.encode(x, key), x, key)
    return np.asarray(jax.jit(jax.vmap(both))(keys), float)


def test_random_k_contracts_in_expectation():
    x = jnp.asarray(normal(20) * np.arange(1, 21, dtype=np.float32))
    sent = draws(random_k(density=0.25), x, 4000)
    assert (np.count_nonzero(sent, axis=1) == 5).all()
    # Every entry is as likely as any other, and every pair.
    chosen = (sent != 0).astype(float)
    np.testing.assert_allclose(chosen.mean(0), 0.25, atol=5 * np.sqrt(0.1875 / 4000))
    pairs = chosen.T @ chosen / 4000
    apart = ~np.eye(20, dtype=bool)
    np.testing.assert_allclose(pairs[apart], 5 * 4 / (20 * 19), atol=0.02)
    error = np.sum((np.asarray(x, float) - sent) ** 2, axis=1)
    energy = np.sum(np.asarray(x, float) ** 2)
    spread = error.std() / np.sqrt(4000)
    assert abs(error.mean() - 0.75 * energy) < 5 * spread


def test_scaled_random_k_is_unbiased_with_its_exact_variance():
    x = jnp.asarray(normal(20))
    sent = draws(random_k(density=0.25, scaled=True), x, 4000)
    v = np.asarray(x, float)
    deviation = np.abs(v) * np.sqrt(3 / 4000)
    assert (np.abs(sent.mean(0) - v) < 5 * deviation).all()
    error = np.sum((sent - v) ** 2, axis=1)
    spread = error.std() / np.sqrt(4000)
    assert abs(error.mean() - (20 / 5 - 1) * np.sum(v**2)) < 5 * spread


@pytest.mark.parametrize("place", PLACES, ids=lambda p: f"{p[0]}-{p[1]}x{p[2]}")
def test_B13_random_k_chooses_alike_on_all_workers_and_anew_each_step(place):
    workers = place[1] * place[2]
    x = {"w": 1 + np.abs(normal((workers, 8, 25)))}
    for scaled in (False, True):
        reducer = compressed_all_reduce(random_k(density=0.1, scaled=scaled), seed=5)

        def two_steps(g, reducer=reducer):
            first, state = reducer.update(g, reducer.init(g))
            second, _ = reducer.update(g, state)
            return first["w"], second["w"]

        steps = over(two_steps, place, x)
        factor = 10 if scaled else 1
        for step in steps:
            chosen = step[0] != 0
            assert chosen.sum() == 20
            for mine in step:
                np.testing.assert_array_equal(mine, step[0])
            np.testing.assert_allclose(
                step[0][chosen], factor * x["w"].mean(0)[chosen], rtol=1e-5
            )
        assert ((steps[0][0] != 0) != (steps[1][0] != 0)).any()


def test_random_k_depends_on_the_seed():
    x = {"w": jnp.asarray(1 + np.abs(normal((8, 25))))}
    both = []
    for seed in (0, 1):
        reducer = compressed_all_reduce(random_k(density=0.1), seed=seed)
        step = jax.jit(lambda x, r=reducer: r.update(x, r.init(x))[0]["w"])
        both.append(np.asarray(step(x)))
    assert ((both[0] != 0) != (both[1] != 0)).any()
