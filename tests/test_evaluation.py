"""Evaluation: every example counts once, in chunks that fit, on all devices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import scalar, tiny

import parsgd
from parsgd.data.dataset import Split
from parsgd.training.evaluate import evaluator


def test_chunks_on_several_devices_wait_for_each_other(monkeypatch):
    """Or their sums deadlock: XLA ends the process after a minute."""
    task, rng = tiny(), np.random.default_rng(0)
    params, state = task.init(jax.random.key(0))
    rows = rng.integers(0, len(task.data.train.x), 40_000)
    split = Split(*(v[rows] for v in task.data.train))
    monkeypatch.setattr("parsgd.training.evaluate.CHUNK", 100)
    found = evaluator(task, split, devices=jax.devices())(params, state)
    alone = evaluator(task, split)(params, state)
    assert found.keys() == alone.keys()
    for name, value in alone.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


def test_F5_metrics_of_half_precision_are_added_in_float32():
    """1,937 of 2,000 in bfloat16 are 1,936, and 2,000 x 40 leave float16."""
    task = scalar(np.ones(2000))
    many = {
        "loss": jnp.full(2000, 40.0, jnp.float16),
        "accuracy": (jnp.arange(2000) < 1937).astype(jnp.bfloat16),
    }
    task = task._replace(metrics=lambda params, model, batch: many)
    found = evaluator(task, task.data.test)({}, {})
    assert found == {"loss": 40.0, "accuracy": 1937 / 2000}


def test_F5_evaluation_takes_fewer_rows_where_2000_need_too_much_memory(monkeypatch):
    rows = np.arange(2000)
    task, seen = scalar(rows), []

    def metrics(params, model, batch):
        seen.append(len(batch.x))
        wide = jnp.sort(jnp.outer(jnp.float32(batch.y) + params, jnp.ones(4096)), 1)
        return {"loss": wide.max(axis=1)}

    task = task._replace(metrics=metrics)
    split = task.data.train._replace(y=rows)
    monkeypatch.setattr("parsgd.training.evaluate.MEMORY", 2**20)
    found = evaluator(task, split)(jnp.float32(0.0), {})
    assert found["loss"] == 999.5
    assert seen[0] == 2000 and seen[-1] * 4096 * 4 <= 2**20
    assert seen[-1] > 8  # and not one after the other


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_F5_accuracy_counts_every_example_once(workers, rows, monkeypatch):
    monkeypatch.setattr("parsgd.training.evaluate.CHUNK", rows)
    task = tiny()
    run = parsgd.fit(
        task, parsgd.sync_sgd(optax.sgd(0.0)), workers=workers, worker_batch=4,
        samples=16,
    )  # fmt: skip
    x, y = task.data.test
    hits = task.metrics(run.readout, {}, parsgd.Batch(x, y))["accuracy"]
    assert run.history[-1]["test_accuracy"] == float(hits.sum()) / 20
