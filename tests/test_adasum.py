"""Adasum against its oracle: agreement is averaged, the rest added."""

import numpy as np
import pytest
import reducer_oracles as oracles
from reducing import PLACES, gradients, trajectory

from parsgd.reducers import adasum


@pytest.mark.parametrize(
    "place", [*PLACES, ("vmap", 1, 5), ("vmap", 1, 8), ("shard_map", 3, 2)]
)
@pytest.mark.parametrize("per_leaf", [True, False])
def test_adasum_follows_its_oracle(place, per_leaf):
    workers = place[1] * place[2]
    g = {"a": gradients((4, 3), workers, 1), "b": 3 * gradients((5,), workers, 1, 1)}
    outs, _ = trajectory(adasum(per_leaf=per_leaf), place, g)
    flat = {k: v.reshape(workers, -1).astype(np.float64) for k, v in g.items()}
    if per_leaf:
        want = {k: oracles.adasum(list(v)) for k, v in flat.items()}
    else:
        whole = oracles.adasum(list(np.concatenate([flat["a"], flat["b"]], 1)))
        want = {"a": whole[:12], "b": whole[12:]}
    for k, value in outs.items():
        for w in range(workers):
            np.testing.assert_allclose(value[w].reshape(-1), want[k], atol=1e-5)
            np.testing.assert_array_equal(value[w], value[0])


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8])
def test_adasum_averages_what_agrees_and_adds_what_does_not(workers):
    same = np.tile(gradients((6,), 1, 1), (workers, 1, 1))
    outs, _ = trajectory(adasum(), ("vmap", 1, workers), {"w": same})
    np.testing.assert_allclose(outs["w"], same, rtol=1e-6)
    apart = 2 * np.eye(workers, dtype=np.float32)[:, None]
    outs, _ = trajectory(adasum(), ("vmap", 1, workers), {"w": apart})
    np.testing.assert_allclose(outs["w"], 2 * np.ones_like(apart), rtol=1e-6)
    # A worker without a gradient changes nothing.
    apart[0] = 0
    outs, _ = trajectory(adasum(), ("vmap", 1, workers), {"w": apart})
    np.testing.assert_array_equal(outs["w"][0], apart.sum(0))
