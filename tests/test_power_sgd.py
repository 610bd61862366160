"""PowerSGD against its oracle, and where the paper leaves questions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reducer_oracles as oracles
from reducing import LANES3, LANES4, PLACES, SHAPES, compare, gradients, trajectory

from parsgd.reducers import all_reduce, power_sgd


def first_q(rank, n, seed=0, step=0):
    """The Q that `power_sgd` starts a single leaf from."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), 0)
    return np.asarray(jax.random.normal(key, (n, rank)), np.float64)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (12, 8)),
        ({"iterations": 3}, (8, 12)),
        ({"warm_start": False}, (12, 8)),
        ({"feedback": False}, (3, 4, 8)),
    ],
)
def test_power_sgd_follows_its_oracle(options, shape, place):
    q = first_q(2, shape[-1])
    if not options.get("warm_start", True):
        q = [first_q(2, shape[-1], step=t) for t in range(6)]

    def error(state):
        return state.error.get("['w']", np.zeros((4, 6, *shape)))

    compare(
        power_sgd(2, **options), place,
        lambda g: oracles.power_sgd(g, q, **options), error, shape, atol=2e-4,
    )  # fmt: skip


def test_B3_power_sgd_recovers_after_zero_gradients():
    rng = np.random.default_rng(0)
    m = rng.normal(size=(8, 6)).astype(np.float32)
    # An orthonormal basis of zero must not be one that the matrix has nothing in.
    hidden = m.copy()
    hidden[:4] = 0
    for matrix in (m, hidden):
        g = np.stack([matrix, 0 * matrix, *[matrix] * 4])[None]
        plain = power_sgd(2, feedback=False)
        outs, _ = trajectory(plain, ("vmap", 1, 1), {"w": g})
        norms = np.linalg.norm(outs["w"][0], axis=(1, 2))
        assert np.isfinite(outs["w"]).all() and norms[1] == 0
        assert (norms[2:] > 0.5 * norms[0]).all(), norms
        # With feedback the error of all steps together stays that of one.
        outs, states = trajectory(power_sgd(2), ("vmap", 1, 1), {"w": g})
        left = states.error["['w']"][0, -1]
        np.testing.assert_allclose(outs["w"][0].sum(0) + left, g[0].sum(0), atol=1e-4)
        assert np.linalg.norm(left) < 3 * np.linalg.norm(matrix)


@pytest.mark.parametrize("scale", [1e-25, 1e15])
def test_power_sgd_at_any_scale(scale):
    """A Q of the gradient's scale would under- or overflow in the next product."""
    g = gradients((8, 6), 3)
    outs, _ = trajectory(power_sgd(2), LANES3, {"w": g})
    scaled, _ = trajectory(power_sgd(2), LANES3, {"w": np.float32(scale) * g})
    np.testing.assert_allclose(
        scaled["w"] / scale, outs["w"], atol=1e-4 * np.abs(outs["w"]).max()
    )


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("rank", [1, 4, 16])
def test_B4_B5_full_rank_is_the_exact_mean(rank, dtype):
    shapes = [*SHAPES, (4, 4), (5, 40)]
    g = {str(s): gradients(s, 3, 4).astype(dtype) for s in shapes}
    outs, states = trajectory(power_sgd(rank), LANES3, g)
    mean, _ = trajectory(all_reduce(), LANES3, g)
    for shape in shapes:
        sides = int(np.prod(shape[:-1])), int(np.prod(shape[-1:]))
        factors = 4 * rank * sum(sides)  # float32
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        thin = len(shape) > 1 and factors < size
        same = np.array_equal(outs[str(shape)], mean[str(shape)])
        assert same != thin, (shape, rank)
        assert (f"['{shape}']" in states.error) == thin


def test_B13_the_random_start_is_shared_and_new_in_every_step():
    g = np.repeat(gradients((8, 6), 4, 1), 5, axis=1)  # the same in every step
    for place in (LANES4, ("shard_map", 2, 2)):
        fresh = power_sgd(1, warm_start=False, feedback=False)
        outs, _ = trajectory(fresh, place, {"w": g})
        for a, b in itertools.combinations(outs["w"][0], 2):
            assert np.abs(a - b).max() > 1e-3
        outs, states = trajectory(power_sgd(1), place, {"w": g})
        for q in states.q["['w']"]:
            np.testing.assert_array_equal(q, states.q["['w']"][0])
    firsts = [
        power_sgd(1, seed=s).init({"a": jnp.ones((9, 9)), "b": jnp.ones((9, 9))}).q
        for s in (0, 1)
    ]
    starts = [np.asarray(q) for tree in firsts for q in tree.values()]
    assert len({q.tobytes() for q in starts}) == 4


@pytest.mark.parametrize("feedback", [True, False])
def test_B10_a_start_of_another_shape_is_refused(feedback):
    reducer = power_sgd(1, feedback=feedback)
    state = reducer.init({"w": jnp.zeros((6, 5))})
    with pytest.raises(ValueError, match=r"\['w'\].*another model"):
        reducer.update({"w": jnp.zeros((6, 7))}, state)
    with pytest.raises(ValueError, match=r"\['v'\].*another model"):
        reducer.update({"v": jnp.zeros((6, 5))}, state)
