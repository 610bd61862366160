"""Adasum against its oracle: agreement is averaged, the rest added."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reducer_oracles as oracles
from reducing import PLACES, gradients, trajectory

import parsgd
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


def with_a_broadcast_parameter():
    """XLA would compute the gradient of ``t`` twice, once to send and once to add."""
    base = parsgd.digits()

    def init(key):
        first, second = jax.random.split(key)
        return {
            "w": 0.1 * jax.random.normal(first, (64, 16)),
            "v": 0.3 * jax.random.normal(second, (16, 10)),
            "t": jnp.zeros(3),
        }, {}

    def scores(params, x):
        h = jnp.tanh(base.data.prepare(x).reshape(len(x), -1) @ params["w"])
        return h @ params["v"] + h[:, :1] * jnp.sum(params["t"])

    def metrics(params, model, batch):
        found = scores(params, batch.x)
        loss = optax.softmax_cross_entropy_with_integer_labels(found, batch.y)
        return {"loss": loss, "accuracy": (found.argmax(-1) == batch.y) * 1.0}

    def loss(params, model, batch, key):
        return metrics(params, model, batch)["loss"].mean(), model

    return base._replace(init=init, loss=loss, metrics=metrics, separable=False)


@pytest.mark.parametrize("workers", [2, 4])
def test_both_workers_of_a_pair_get_the_same_bits(workers):
    method = parsgd.data_parallel(optax.sgd(0.05, 0.9), reducer=adasum())
    run = parsgd.fit(
        with_a_broadcast_parameter(), method, workers=workers, worker_batch=4,
        rounds=40, evaluations=1, placement="shard_map", check_replicas=True,
    )  # fmt: skip
    assert run.status == "completed"
