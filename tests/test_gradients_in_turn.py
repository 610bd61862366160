"""Lanes that take their gradients one after the other: when, and with what result."""

import jax
import numpy as np
import optax
import pytest
from test_placements import by_lanes, engine, equations, state_after

import parsgd
from parsgd import comm
from parsgd.data.dataset import Dataset, Split, as_floats
from parsgd.data.order import Order
from parsgd.training.worker import Worker

RULE = "parsgd.training.worker.large_steps"
PARTS = ("parsgd.training.worker.union_of", lambda *a, **k: "")


def always(*_, **__):
    return True


def images():
    x = np.random.default_rng(0).normal(size=(192, 12, 12, 1)).astype(np.float32)
    split = Split(x, np.arange(192, dtype=np.int32) % 5)
    return Dataset("images", split, split, 5, as_floats)


def compare(one, other):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), one, other
    )


NAMES = ["sync_sgd", "one_bit_sgd", "local_sgd", "post_local_sgd", "dgc", "power_sgd"]


@pytest.mark.parametrize("name", NAMES)
def test_they_agree_with_gradients_taken_together(name, monkeypatch):
    reference, losses, _ = by_lanes(name, 4)
    monkeypatch.setattr(RULE, always)
    monkeypatch.setattr(*PARTS)
    for kind, devices in (("vmap", None), ("shard_map", 2)):
        made = engine(name, 4, kind, devices)
        assert "one after the other" in made[0].describe()
        state, values, _ = state_after(name, 4, kind, devices, made=made)
        compare(reference, state)
        np.testing.assert_allclose(losses, values, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "model", "micro_batches"),
    [
        ("sync_sgd", {"batch_norm": True}, 1),
        ("sync_sgd", {"batch_norm": True}, 2),
        ("sync_sgd", {"dropout": 0.5}, 2),
        ("one_bit_sgd", {"batch_norm": True, "dropout": 0.5}, 1),
    ],
    ids=str,
)
def test_models_with_a_state_or_noise_of_their_own_agree(
    name, model, micro_batches, monkeypatch
):
    def run(rule, workers=3):
        monkeypatch.setattr(RULE, rule)
        method = getattr(parsgd, name)(optax.sgd(0.1))
        task = parsgd.classification(images(), parsgd.models.CNN(**model))
        sizes = {"workers": workers, "worker_batch": 8, "rounds": 6}
        return parsgd.fit(
            task, method, **sizes, micro_batches=micro_batches, placement="vmap"
        )

    together, apart = run(lambda *a, **k: False), run(always)
    # XLA sums a convolution's products in another order, and one bit may then differ.
    near = 2e-4 if name == "sync_sgd" else 2e-3
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=near, atol=near),
        (together.readout, together.model_state),
        (apart.readout, apart.model_state),
    )


def test_micro_batches_of_one_batch_agree():
    def run(micro_batches):
        method = parsgd.sync_sgd(optax.sgd(0.1))
        task = parsgd.classification(images(), parsgd.models.CNN())
        sizes = {"workers": 3, "worker_batch": 8, "rounds": 6}
        return parsgd.fit(
            task, method, **sizes, micro_batches=micro_batches, placement="vmap"
        ).readout

    whole = run(1)
    for micro_batches in (2, 8):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            whole,
            run(micro_batches),
        )


def worker(model, batch, loss=None, strategy=None):
    x, y = np.zeros((128, 28, 28, 1), np.uint8), np.zeros(128, np.int32)
    data = Dataset("images", Split(x, y), Split(x, y), 10, as_floats)
    task = parsgd.classification(data, model)
    task = task._replace(loss=loss(task.loss)) if loss else task
    phases = parsgd.core.phases(strategy or parsgd.one_bit_sgd(optax.sgd(0.1)))
    order = Order(examples=128, workers=4, worker_batch=batch)
    return Worker(task, phases, order=order)


@pytest.mark.parametrize(
    ("model", "batch", "expected"),
    [
        (parsgd.models.CNN(), 32, True),
        (parsgd.models.CNN(batch_norm=True), 32, True),
        (parsgd.models.CNN(), 4, False),  # too little for all cores
        (parsgd.models.mlp_6_9m(), 32, False),  # each weight is used once
    ],
    ids=["CNN", "BatchNorm", "small", "MLP"],
)
def test_they_are_for_large_convolutions(model, batch, expected):
    assert worker(model, batch).gradients_in_turn == expected


def test_a_large_state_is_not_copied_to_every_device(monkeypatch):
    made = worker(parsgd.models.CNN(), 32)
    assert made.gains_by_devices
    monkeypatch.setattr("parsgd.training.worker.SPREAD_BYTES", 1 << 18)
    assert made.large_steps and not made.gains_by_devices


@pytest.mark.parametrize(
    ("method", "model", "expected"),
    [
        (parsgd.one_bit_sgd, parsgd.models.mlp_258k(), True),
        (parsgd.sync_sgd, parsgd.models.mlp_258k(), False),  # one gradient for all
        (parsgd.one_bit_sgd, parsgd.models.MLP(features=(16,)), False),  # too small
        (parsgd.local_sgd, parsgd.models.mlp_258k(), False),  # they differ anyway
    ],
    ids=["one-bit", "shared", "small", "local"],
)
def test_gradients_of_their_own_take_a_device_per_core(method, model, expected):
    made = worker(model, 32, strategy=method(optax.sgd(0.1)))
    assert made.gains_by_devices == expected and not made.large_steps


def test_lanes_that_share_one_gradient_do_not_say_so():
    method = parsgd.sync_sgd(optax.sgd(0.1))
    made = worker(parsgd.models.CNN(), 32, strategy=method)
    assert made.large_steps and not made.gradients_in_turn


@pytest.mark.parametrize(
    "exchange",
    [comm.mean, lambda value: comm.permute(value, [(0, 1), (1, 0), (2, 3), (3, 2)])],
    ids=["mean", "permute"],
)
def test_they_are_not_for_a_loss_that_communicates(exchange):
    def averaged(loss):
        def own(params, model, batch, key):
            value, model = loss(params, model, batch, key)
            return exchange(value), model

        return own

    made = worker(parsgd.models.CNN(), 32, loss=averaged)
    assert not made.large_steps and not made.gradients_in_turn


@pytest.mark.parametrize(
    ("name", "dropout", "micro_batches", "rows"),
    [
        ("sync_sgd", 0.5, 1, 4),
        ("sync_sgd", 0.5, 2, 2),
        ("sync_sgd", 0.0, 1, 16),
        ("sync_sgd", 0.0, 2, 8),
        ("sync_sgd", 0.0, 4, 4),
        ("one_bit_sgd", 0.0, 1, 4),
    ],
)
def test_as_many_examples_at_once_as_was_asked_for(
    name, dropout, micro_batches, rows, monkeypatch
):
    monkeypatch.setattr(RULE, always)
    model = parsgd.models.MLP(features=(16,), dropout=dropout)
    task = parsgd.classification(images(), model)
    method = getattr(parsgd, name)(optax.sgd(0.1))
    run, _ = engine(method, 4, "vmap", task=task, micro_batches=micro_batches)
    state, *data = run.worker.spec, *run.worker._data_spec(1)[:2]
    index = jax.ShapeDtypeStruct((1, 4, 4), np.int32)  # of four workers
    axes = (None, None, None, 1, None)
    lanes = jax.vmap(lambda *a: run.worker.round(0, *a), axes, axis_name=comm.LANES)
    program = jax.make_jaxpr(lanes)(state, *data, index, None)
    hidden = {
        out.aval.shape[:-1]
        for dot in equations(program.jaxpr, "dot_general")
        for out in dot.outvars
        if out.aval.shape[-1] == 16
    }
    assert (rows,) in hidden and max(hidden - {(5,)}) == (rows,)
