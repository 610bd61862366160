"""Means are means: over samples, workers and partial batches, and of penalties."""

import math

import numpy as np
import optax
import pytest
from tiny import scalar

import parsgd
from parsgd.data.order import Order
from parsgd.training.observer import Observer

ONE = optax.sgd(1.0)


def first_update(task, algorithm, **options):
    """What one step of learning rate 1 subtracts from ``w``."""
    run = parsgd.fit(task, algorithm, evaluations=1, **options)
    return 2.0 - float(run.readout["w"])


@pytest.mark.parametrize("kind", ["vmap", "shard_map", "pmap"])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_A1_first_update_is_the_global_batch_gradient(workers, kind):
    """loss = mean((2x - 1)^2), x = 0..7: the gradient is 63, whatever W is."""
    task = scalar(np.arange(8))
    for algorithm in (parsgd.sync_sgd(ONE), parsgd.local_sgd(ONE)):
        got = first_update(
            task, algorithm, workers=workers, global_batch=8, samples=8, placement=kind
        )
        assert got == pytest.approx(63.0, rel=1e-6)


AVERAGING = {
    "sync_sgd ring": lambda: parsgd.sync_sgd(ONE, algorithm="ring"),
    "sync_sgd tree": lambda: parsgd.sync_sgd(ONE, algorithm="tree"),
    "compressed_sgd": lambda: parsgd.compressed_sgd(ONE, reducer=parsgd.all_reduce()),
    "dense start": lambda: parsgd.one_bit_sgd(ONE, start_step=1),
    "post_local_sgd": lambda: parsgd.post_local_sgd(ONE, switch_step=1),
    "reduced local_sgd": lambda: parsgd.local_sgd(ONE, reducer=parsgd.all_reduce()),
    "block_momentum": lambda: parsgd.block_momentum(ONE),  # it has no velocity yet
    "block_momentum nesterov": lambda: parsgd.block_momentum(
        ONE, eta=0.0, nesterov=True
    ),
    "diloco": lambda: parsgd.diloco(ONE, outer_learning_rate=1.0, outer_momentum=0.0),
    "outer_loop": lambda: parsgd.outer_loop(
        ONE, optax.chain(parsgd.all_reduce(), optax.sgd(1.0))
    ),
}


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("name", AVERAGING)
def test_A1_every_average_is_the_mean(name, workers):
    got = first_update(
        scalar(np.arange(8)), AVERAGING[name](), workers=workers, global_batch=8,
        samples=8,
    )  # fmt: skip
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


def test_batch_loss_is_the_mean_over_steps_where_the_last_round_is_shorter():
    x = np.arange(10, dtype=np.float32)
    run = parsgd.fit(
        scalar(x), parsgd.local_sgd(optax.sgd(0.0)), worker_batch=1, local_steps=4,
        epochs=1, evaluations=1,
    )  # fmt: skip
    assert run.summary["rounds"] == 3
    want = ((2 * x - 1) ** 2).mean()
    assert run.history[-1]["batch_loss"] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("kind", ["vmap", "shard_map", "pmap"])
def test_A4_A6_G5_update_of_a_partial_batch(kind):
    """Two workers with one real sample each, two with none: w moves by their mean."""
    x = np.arange(10, dtype=np.float32)
    for algorithm in (parsgd.sync_sgd(ONE), parsgd.local_sgd(ONE)):
        task = scalar(x)
        seen = []

        class Watch(Observer):
            def record(self, record, seen=seen):
                seen.append(record)

        run = parsgd.fit(
            task, algorithm, workers=4, worker_batch=2, epochs=1, tail="weight",
            evaluations=2, observer=Watch(), placement=kind,
        )  # fmt: skip
        order = Order(examples=10, workers=4, worker_batch=2, tail="weight")
        index, weight = order.indices(0, 2)
        assert (weight[1] > 0).sum(axis=1).tolist() == [1, 1, 0, 0]
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


@pytest.mark.parametrize(
    "make",
    [
        parsgd.local_sgd,
        lambda opt: parsgd.diloco(opt, outer_learning_rate=1.0, outer_momentum=0.0),
        lambda opt: parsgd.block_momentum(opt, eta=0.0),
    ],
    ids=["local_sgd", "diloco", "block_momentum"],
)
def test_A7_decay_counts_once_per_step_not_once_more_per_round(make):
    decay = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.5))
    for workers, batch in ((1, 2), (2, 2), (4, 1)):
        run = parsgd.fit(
            scalar(np.zeros(16)), make(decay), workers=workers, worker_batch=batch,
            local_steps=2, rounds=1,
        )  # fmt: skip
        want = 2 * (1 - 0.5 * 0.1) ** 2
        assert float(run.readout["w"]) == pytest.approx(want, rel=1e-6)
