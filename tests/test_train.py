"""`fit`: sizes, budgets, exact averages, records, divergence, accumulation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import scalar, tiny

import parsgd
from parsgd.data.order import Order
from parsgd.training.train import Observer


def first_update(task, algorithm, **options):
    """What one step of learning rate 1 subtracts from ``w``."""
    run = parsgd.fit(task, algorithm, evaluations=1, **options)
    return 2.0 - float(run.readout["w"])


ONE = optax.sgd(1.0)


@pytest.mark.parametrize("kind", ["vmap", "shard_map", "pmap"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_A1_first_update_is_the_global_batch_gradient(workers, kind):
    """loss = mean((2x - 1)^2), x = 0..7: the gradient is 63, whatever W is."""
    task = scalar(np.arange(8))
    for algorithm in (parsgd.sync_sgd(ONE), parsgd.local_sgd(ONE)):
        got = first_update(
            task, algorithm, workers=workers, global_batch=8, samples=8, placement=kind
        )
        assert got == pytest.approx(63.0, rel=1e-6)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_A6_last_partial_batch_is_weighted_exactly(workers):
    """N = 10, B = 4 or 5..: the last update is the mean over the real samples only."""
    x = np.arange(10, dtype=np.float32)
    batch = {1: 4, 2: 4, 5: 10}[workers]
    still = parsgd.sync_sgd(optax.sgd(0.0))
    task = scalar(x)
    run = parsgd.fit(
        task, still, workers=workers, global_batch=batch, epochs=1, tail="weight",
        evaluations=1,
    )  # fmt: skip
    assert run.summary["steps"] == math.ceil(10 / batch)
    assert run.history[-1]["samples"] == 10
    # At a fixed w each step's loss is the mean over its real samples.
    order = Order(examples=10, workers=workers, worker_batch=batch // workers)
    index, _ = order.indices(0, 10 // batch)
    seen = [((2 * x[i] - 1) ** 2).mean() for i in index.reshape(-1, batch)]
    rest = np.setdiff1d(np.arange(10), index)
    if len(rest):
        seen.append(((2 * x[rest] - 1) ** 2).mean())
    assert run.history[-1]["batch_loss"] == pytest.approx(np.mean(seen), rel=1e-5)


def test_A4_A6_update_of_a_partial_batch():
    """Two real samples on one of four workers move w by the mean over those two."""
    x = np.arange(10, dtype=np.float32)
    for algorithm in (parsgd.sync_sgd(ONE), parsgd.local_sgd(ONE)):
        task = scalar(x)
        seen = []

        class Watch(Observer):
            def record(self, record, seen=seen):
                seen.append(record)

        run = parsgd.fit(
            task, algorithm, workers=4, worker_batch=2, epochs=1, tail="weight",
            evaluations=2, observer=Watch(),
        )  # fmt: skip
        order = Order(examples=10, workers=4, worker_batch=2, tail="weight")
        index, weight = order.indices(0, 2)
        w = 2.0
        for i, mask in zip(index, weight, strict=True):
            real = x[i[mask > 0]]
            w -= np.mean(2 * (w * real - 1) * real)
        assert float(run.readout["w"]) == pytest.approx(w, rel=1e-5)
        assert [r["round"] for r in seen] == [0, 1, 2]


def test_A6_dropping_is_announced():
    lines = []

    class Watch(Observer):
        def start(self, summary, said):
            lines.extend(said)

    run = parsgd.fit(
        scalar(np.arange(10)), parsgd.sync_sgd(ONE), workers=4, worker_batch=2,
        epochs=1, observer=Watch(),
    )  # fmt: skip
    assert run.summary["steps"] == 1
    assert any("2 of 10 samples dropped" in line for line in lines)


def test_A7_penalty_does_not_scale_with_workers():
    """Data loss 0 and L2: the update is -lr lambda w for every W and b."""
    decay = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.5))
    for workers, batch in ((1, 2), (2, 2), (4, 1)):
        for make in (parsgd.sync_sgd, parsgd.local_sgd):
            run = parsgd.fit(
                scalar(np.full(8, 0.5)), make(decay), workers=workers,
                worker_batch=batch, samples=workers * batch,
            )  # fmt: skip
            assert float(run.readout["w"]) == pytest.approx(2 - 0.5 * 0.1 * 2)


def test_C1_C6_rounds_and_the_last_short_one():
    calls = []
    base = parsgd.local_sgd(optax.sgd(0.1))

    def sync(params, state):
        jax.debug.callback(lambda: calls.append(1))
        return base.sync(params, state)

    run = parsgd.fit(
        tiny(48), base._replace(sync=sync), workers=1, worker_batch=4, local_steps=4,
        epochs=1, evaluations=1,
    )  # fmt: skip
    jax.effects_barrier()
    # Three rounds, and the one on a copy that goes before them.
    assert run.summary["steps"] == 12 and run.summary["rounds"] + 1 == len(calls) == 4
    run = parsgd.fit(tiny(40), base, workers=2, worker_batch=2, local_steps=4, epochs=1)
    assert (run.summary["steps"], run.summary["rounds"]) == (10, 3)
    assert run.history[-1]["spread"] > 0  # measured before the last synchronisation


def test_post_local_takes_single_steps_first():
    run = parsgd.fit(
        tiny(), parsgd.post_local_sgd(optax.sgd(0.1), switch_step=6), workers=2,
        worker_batch=2, local_steps=5, epochs=1, evaluations=30,
    )  # fmt: skip
    steps = [r["step"] for r in run.history]
    assert steps == [0, 1, 2, 3, 4, 5, 6, 11, 16, 21, 24]


def test_B14_dense_start_is_sync_sgd_to_the_bit():
    options = {"workers": 4, "worker_batch": 2, "epochs": 1, "evaluations": 12}
    sync = parsgd.fit(tiny(), parsgd.sync_sgd(optax.sgd(0.1)), **options)
    for start, equal in ((0, 1), (4, 5), (99, 13)):
        late = parsgd.one_bit_sgd(optax.sgd(0.1), start_step=start)
        run = parsgd.fit(tiny(), late, **options)
        same = [
            a["train_loss"] == b["train_loss"]
            for a, b in zip(sync.history, run.history, strict=True)
        ]
        assert same == [True] * equal + [False] * (13 - equal)
        dense = min(start, 12) * sync.summary["bytes_per_round"]
        assert run.history[min(start, 12)]["bytes"] == pytest.approx(dense)


def test_I5_a_step_sees_the_workers_own_batch():
    shapes = []

    def loss(params, model, batch, key):
        shapes.append(batch.x.shape)
        return jnp.mean(params["w1"]) * jnp.mean(batch.x), model

    task = tiny()._replace(loss=loss)
    for place in ("vmap", "shard_map"):
        parsgd.fit(
            task,
            parsgd.local_sgd(optax.sgd(0.1)),
            workers=4,
            worker_batch=3,
            rounds=1,
            placement=place,
        )
    assert {*shapes} == {(3, 9)}


def test_A9_clipping_before_and_after_the_reduction():
    grads = jnp.array([[3.0, 0.0], [0.0, 4.0]])
    found = {}
    for when in ("clip_before", "clip_after"):
        strategy = parsgd.compressed_sgd(
            optax.sgd(1.0), reducer=parsgd.all_reduce(), **{when: 1.0}
        )

        def step(g, strategy=strategy):
            x = jnp.zeros(2)
            return -strategy.local(g, strategy.init(x), x)[0]

        found[when] = jax.vmap(step, axis_name=parsgd.comm.LANES)(grads)[0]
    np.testing.assert_allclose(found["clip_before"], [0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(found["clip_after"], [0.6, 0.8], rtol=1e-6)


def test_D1_equal_budgets_for_every_number_of_workers():
    losses = []
    for workers in (1, 2, 4):
        run = parsgd.fit(
            tiny(), parsgd.sync_sgd(optax.sgd(0.1)), workers=workers, global_batch=8,
            epochs=2,
        )  # fmt: skip
        assert run.summary["samples"] == 192 and run.summary["steps"] == 24
        losses.append(run.history[-1]["train_loss"])
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


def test_G4_divergence_is_a_result():
    """A loss that is not finite for max_bad_rounds in a row ends the run."""
    blowing_up = parsgd.local_sgd(optax.sgd(float("inf")))
    run = parsgd.fit(
        tiny(), blowing_up, workers=2, worker_batch=2, local_steps=2, epochs=5,
        max_bad_rounds=4,
    )  # fmt: skip
    assert run.status == "diverged" and "4 rounds in a row" in run.reason
    assert run.history[-1]["round"] < 30 * 2


def test_G4_a_short_run_that_ends_on_nan_has_diverged():
    run = parsgd.fit(
        tiny(), parsgd.sync_sgd(optax.sgd(float("nan"))), worker_batch=4, rounds=2
    )
    assert run.status == "diverged" and "last 1 round" in run.reason


def test_target_accuracy_stops_early():
    run = parsgd.fit(
        parsgd.digits(), parsgd.sync_sgd(optax.sgd(0.1, 0.9)), workers=2,
        worker_batch=16, epochs=20, evaluations=40, target_accuracy=0.9,
    )  # fmt: skip
    assert run.summary["stopped"] == "target_accuracy"
    accuracy = [r["test_accuracy"] for r in run.history]
    assert accuracy[-1] >= 0.9 > max(accuracy[:-1]) and len(accuracy) < 20


def test_target_accuracy_can_hold_at_the_start():
    run = parsgd.fit(
        tiny(),
        parsgd.sync_sgd(optax.sgd(0.1)),
        worker_batch=4,
        rounds=5,
        target_accuracy=0.0,
    )
    assert run.summary["stopped"] == "target_accuracy"
    assert [record["round"] for record in run.history] == [0]


def test_same_seed_same_result_and_I6_fit_twice():
    task, strategy = tiny(), parsgd.diloco(optax.adam(1e-2))
    options = {"workers": 4, "worker_batch": 2, "local_steps": 3, "epochs": 2}
    runs = [parsgd.fit(task, strategy, seed=s, **options) for s in (0, 0, 1)]
    drop = lambda h: [{k: v for k, v in r.items() if k != "seconds"} for r in h]
    assert drop(runs[0].history) == drop(runs[1].history)
    assert drop(runs[0].history) != drop(runs[2].history)
    assert np.isfinite(np.asarray(runs[0].readout["w1"])).all()


@pytest.mark.parametrize("workers", [1, 2, 4])
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
