"""Gradient accumulation: the parts of a batch give the gradient of the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bad_data import spoiled
from tiny import tiny

import parsgd
from parsgd.core import gradient
from parsgd.reducers import all_reduce, skip_nonfinite


def assert_same_readout(run, other):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6),
        run.readout,
        other.readout,
    )


@pytest.mark.parametrize("parts", [2, 4])
def test_D9_accumulation_is_one_batch(parts):
    options = {"workers": 2, "worker_batch": 8, "epochs": 1, "placement": "vmap"}
    whole = parsgd.fit(tiny(), parsgd.sync_sgd(optax.sgd(0.1)), **options)
    split = parsgd.fit(
        tiny(), parsgd.sync_sgd(optax.sgd(0.1)), micro_batches=parts, **options
    )
    assert_same_readout(whole, split)
    assert whole.summary["steps"] == split.summary["steps"] == 6


@pytest.mark.parametrize("make", [parsgd.sync_sgd, parsgd.local_sgd])
def test_D9_parts_of_a_weighted_last_batch_weigh_alike(make):
    # 13 rows over 2 workers of 4: the last step has 5, so its parts 2, 1, 1 and 1.
    options = {"workers": 2, "worker_batch": 4, "epochs": 2, "tail": "weight"}
    whole, split = (
        parsgd.fit(
            tiny(13), make(optax.sgd(0.1)), micro_batches=parts, evaluations=4,
            **options,
        )
        for parts in (1, 2)
    )  # fmt: skip
    assert whole.summary["steps"] == 4
    assert_same_readout(whole, split)
    for a, b in zip(whole.history[1:], split.history[1:], strict=True):
        assert a["batch_loss"] == pytest.approx(b["batch_loss"], rel=1e-6)


def test_D9_one_bad_part_is_a_bad_step():
    safe = parsgd.data_parallel(
        skip_nonfinite(optax.chain(all_reduce(), optax.sgd(0.1, 0.9)))
    )
    sizes = {"workers": 2, "worker_batch": 4, "rounds": 6}
    task = spoiled(tiny(), steps=[2], worker=1, **sizes)
    whole, split = (
        parsgd.fit(task, safe, micro_batches=parts, evaluations=1, **sizes)
        for parts in (1, 2)
    )
    assert split.status == "completed"
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(split.readout))
    assert_same_readout(whole, split)
    lost = parsgd.fit(
        task, parsgd.sync_sgd(optax.sgd(0.1)), micro_batches=2, evaluations=1, **sizes
    )
    assert lost.status == "diverged"


def test_D9_accumulation_is_in_float32():
    def loss(params, model, batch, key):
        return params["w"] * jnp.mean(batch).astype(jnp.bfloat16), model

    # In bfloat16 256 + 1 is 256, and the mean would be 32.
    batch = jnp.array([256.0] + 7 * [1.0])
    params = {"w": jnp.bfloat16(1)}
    _, _, grads = gradient(loss, params, {}, batch, jax.random.key(0), 8)
    assert grads["w"].dtype == jnp.bfloat16
    assert float(grads["w"]) == float(jnp.bfloat16(263 / 8))
