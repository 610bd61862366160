"""Lanes' batches taken as one: whether, and in which parts."""

import jax
import numpy as np
import optax
import pytest
from tiny import tiny

import parsgd
from parsgd.data.dataset import Dataset, Split, as_floats
from parsgd.data.order import Order
from parsgd.training.worker import Worker


def images():
    x = np.zeros((64, 12, 12, 1), np.float32)
    split = Split(x, np.arange(64, dtype=np.int32) % 4)
    return Dataset("images", split, split, 4, as_floats)


def union(model, workers=4, strategy=None):
    task = parsgd.classification(images(), model)
    phases = parsgd.core.phases(strategy or parsgd.sync_sgd(optax.sgd(0.1)))
    order = Order(examples=64, workers=workers, worker_batch=8)
    return Worker(task, phases, order=order)._union


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (parsgd.models.MLP(features=(16,)), "whole"),
        (parsgd.models.CNN(), "parts"),
        (parsgd.models.CNN(batch_norm=True), ""),  # a state of its own
        (parsgd.models.MLP(features=(16,), dropout=0.5), ""),  # masks of its own
    ],
    ids=["MLP", "CNN", "BatchNorm", "dropout"],
)
def test_convolutions_go_through_the_one_batch_in_parts(model, expected):
    assert union(model) == expected


def test_methods_that_use_each_workers_gradient_have_no_union():
    assert union(parsgd.models.CNN(), strategy=parsgd.local_sgd(optax.sgd(0.1))) == ""
    assert union(parsgd.models.CNN(), workers=1) == ""


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("tail", ["drop", "weight"])
def test_parts_give_what_the_whole_gives(monkeypatch, tail, micro_batches):
    def run(how):
        monkeypatch.setattr("parsgd.training.worker.union_of", lambda *a, **k: how)
        sizes = {"workers": 3, "worker_batch": 8, "epochs": 2, "tail": tail}
        sizes["micro_batches"] = micro_batches
        method = parsgd.sync_sgd(optax.sgd(0.1, 0.9))
        return parsgd.fit(tiny(), method, **sizes, placement="vmap", evaluations=4)

    apart = run("")
    monkeypatch.setattr("parsgd.gradient.PART", 4)
    for how in ("whole", "parts"):
        other = run(how)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6),
            apart.readout,
            other.readout,
        )
        for one, two in zip(apart.history, other.history, strict=True):
            if one["batch_loss"] is not None:
                assert one["batch_loss"] == pytest.approx(two["batch_loss"], rel=1e-5)
