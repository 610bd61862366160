"""Reducers over several steps, under several placements."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from test_comm import over

from parsgd import traffic

LANES3, LANES4 = ("vmap", 1, 3), ("vmap", 1, 4)
PLACES = [LANES3, LANES4, ("shard_map", 3, 1), ("shard_map", 2, 2)]
SHAPES = [(), (1,), (0, 4), (7,), (2, 3), (3, 2), (3, 3, 8, 8)]


def trajectory(reducer, place, grads):
    """What every worker gets in every step, and its last state.

    ``grads`` is a dict of ``[W, T, ...]``.
    """

    def worker(grads):
        state = reducer.init(jax.tree.map(lambda g: g[0], grads))

        def step(state, g):
            out, state = reducer.update(g, state)
            return state, (out, state)

        return lax.scan(step, state, grads)[1]

    return over(worker, place, grads)


def gradients(shape, workers, steps=6, seed=0):
    g = np.random.default_rng(seed).normal(size=(workers, steps, *shape))
    return g.astype(np.float32)


def compare(reducer, place, oracle, kept, shape=(12, 8), steps=6, atol=2e-5):
    """Outputs and the state ``kept(state)`` of every step, against the oracle's."""
    workers = place[1] * place[2]
    g = gradients(shape, workers, steps)
    outs, states = trajectory(reducer, place, {"w": g})
    theirs = list(oracle(np.swapaxes(g, 0, 1).astype(np.float64)))
    for t, (want, own) in enumerate(theirs):
        for w in range(workers):
            np.testing.assert_allclose(outs["w"][w, t], want, atol=atol)
            np.testing.assert_array_equal(outs["w"][w, t], outs["w"][0, t])
            np.testing.assert_allclose(kept(states)[w, t], own[w], atol=atol)


def sent(reducer, shapes, workers, dtype=jnp.float32):
    like = {str(s): jax.ShapeDtypeStruct(s, dtype) for s in shapes}

    def step(grads):
        return reducer.update(grads, reducer.init(grads))[0]

    return traffic.trace(step, workers, like)


def dense(shapes, workers):
    return sum(8 * (workers - 1) / workers * int(np.prod(s)) for s in shapes)
