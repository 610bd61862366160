"""Fixed shards: whose examples they are, how they differ, and where they are kept."""

import jax
import numpy as np
import optax
import pytest
from command_line import command  # noqa: F401
from hypothesis import assume, given, settings, strategies as st
from resumes import fit
from tiny import CLASSES, tiny

import parsgd
from parsgd.core import phases
from parsgd.data import Order, fixed_shards
from parsgd.data.shards import shard_starts
from parsgd.errors import UserError
from parsgd.training.engine import Engine


def fixed(**sizes):
    return Order(shards="fixed", **sizes)


@settings(deadline=None, max_examples=60)
@given(
    examples=st.integers(1, 60),
    workers=st.integers(1, 7),
    worker_batch=st.integers(1, 5),
    tail=st.sampled_from(["drop", "weight"]),
    skew=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_a_worker_sees_its_own_examples_once_per_epoch(
    examples, workers, worker_batch, tail, skew
):
    assume(workers * worker_batch <= examples)
    labels = np.arange(examples) % 3
    order = fixed(
        examples=examples, workers=workers, worker_batch=worker_batch, tail=tail,
        label_skew=skew, labels=labels,
    )  # fmt: skip
    np.testing.assert_array_equal(np.sort(order.rows), np.arange(examples))
    steps = order.steps_per_epoch
    for epoch in range(2):
        index, weight = order.indices(epoch * steps, steps)
        real = np.ones(index.shape, bool) if weight is None else weight > 0
        for w, start in enumerate(order.starts[:-1]):
            shard = order.rows[start : order.starts[w + 1]]
            seen = index[:, w][real[:, w]]
            assert len(np.unique(seen)) == len(seen) and {*seen} <= {*shard}
            assert {*index[:, w].ravel()} <= {*shard}  # also what is padded
            if tail == "weight":
                assert {*seen} == {*shard}
        assert real.sum() == order.samples_per_epoch == examples - order.dropped
        if (
            weight is not None
        ):  # the mean over slots is that over examples, step by step
            means = (weight * index).mean((1, 2))
            exact = [np.mean(i[r]) for i, r in zip(index, real, strict=True)]
            np.testing.assert_allclose(means, exact, rtol=1e-5)


def test_E4_a_window_is_a_slice_of_the_whole():
    order = fixed(examples=50, workers=3, worker_batch=4, tail="weight", seed=3)
    index, weight = order.indices(0, 15)
    for start in range(15):
        part, part_weight = order.indices(start, 15 - start)
        np.testing.assert_array_equal(part, index[start:])
        np.testing.assert_array_equal(part_weight, weight[start:])


def test_E1_epochs_and_seeds_differ_and_shards_stay():
    order = fixed(examples=64, workers=2, worker_batch=32, seed=1)
    index, _ = order.indices(0, 2)
    assert not np.array_equal(index[0], index[1])
    np.testing.assert_array_equal(np.sort(index[0]), np.sort(index[1]))
    other = fixed(examples=64, workers=2, worker_batch=32, seed=2)
    assert {*other.rows[:32]} != {*order.rows[:32]}
    # Workers are no copies of each other: orders of equally large shards differ.
    position = np.argsort(order.rows)
    places = [position[own] % 32 for own in index[0]]
    assert not np.array_equal(*places)


@pytest.mark.parametrize("workers", [3, 4, 10])
def test_skew_is_the_part_that_is_dealt_by_label(workers):
    labels = np.repeat(np.arange(10), 100)
    starts = shard_starts(1000, workers)

    def classes(skew):
        rows = fixed_shards(1000, label_skew=skew, labels=labels, seed=5)
        shards = np.split(labels[rows], starts[1:-1])
        return [np.bincount(shard, minlength=10) for shard in shards]

    for counts in classes(0.0):
        assert counts.min() > 0  # all classes everywhere
    # A worker has its cut of the labels in their order, and no other.
    for counts, start, end in zip(classes(1.0), starts, starts[1:], strict=False):
        np.testing.assert_array_equal(
            counts, np.bincount(labels[start:end], minlength=10)
        )
    size = 1000 / workers
    if workers == 10:  # a shard's own class is all of its half, and some of the rest
        for w, counts in enumerate(classes(0.5)):
            assert counts.argmax() == w
            assert counts[w] == pytest.approx(0.5 * size + 0.05 * size, abs=0.12 * size)


def run(placement, devices=None, **options):
    return parsgd.fit(
        tiny(95), parsgd.local_sgd(optax.sgd(0.1, 0.9)), workers=4, local_steps=3,
        worker_batch=5, epochs=3, evaluations=1, placement=placement, devices=devices,
        shards="fixed", **options,
    )  # fmt: skip


@pytest.mark.parametrize("skew", [0.0, 1.0])
@pytest.mark.parametrize("tail", ["drop", "weight"])
def test_placements_agree(skew, tail):
    options = {"label_skew": skew, "tail": tail}
    whole = run("vmap", **options)
    assert whole.summary["shards"] == "fixed"
    assert whole.summary["label_skew"] == skew
    for placement, devices in (("shard_map", 2), ("shard_map", 4), ("pmap", 2)):
        other = run(placement, devices, **options)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            whole.readout,
            other.readout,
        )


def test_label_skew_sets_workers_apart():
    alike, apart = (run("vmap", label_skew=skew) for skew in (0.0, 1.0))
    assert apart.history[-1]["spread"] > 1.5 * alike.history[-1]["spread"]


@pytest.mark.parametrize("devices", [2, 4])
def test_a_device_holds_its_own_workers_examples(devices):
    task = tiny(95)
    order = fixed(examples=95, workers=4, worker_batch=5)
    engine = Engine(
        task, phases(parsgd.sync_sgd(optax.sgd(0.1))), order=order, kind="shard_map",
        devices=devices,
    )  # fmt: skip
    engine.init(jax.random.key(0))
    lanes = 4 // devices
    for stored, given_ in zip(engine._data, task.data.train, strict=True):
        for d, shard in enumerate(stored.addressable_shards):
            rows = order.rows[order.starts[d * lanes] : order.starts[(d + 1) * lanes]]
            assert len(rows) <= len(shard.data) <= len(rows) + 1
            np.testing.assert_array_equal(shard.data[: len(rows)], given_[rows])


@pytest.mark.parametrize(
    "options, says",
    [
        ({"label_skew": 0.5}, "set shards=fixed too"),
        ({"shards": "fixed", "label_skew": 1.5}, "must be a number from 0 to 1"),
        ({"shards": "fixed", "label_skew": "all"}, "label_skew='all'"),
        ({"shards": "fixed", "label_skew": float("nan")}, "label_skew=nan"),
        ({"shards": "fix"}, "choose 'reshuffled' or 'fixed'"),
        ({"shards": "fixed", "label_skew": 0.5, "labels": None}, "no single label"),
        ({"shards": "fixed", "label_skew": 0.5, "labels": [[1, 2]] * 8}, "no single"),
    ],
)
def test_what_is_no_way_to_shard_is_refused(options, says):
    labels = options.pop("labels", np.arange(8) % CLASSES)
    labels = None if labels is None else np.asarray(labels)
    with pytest.raises(UserError, match=says):
        Order(examples=8, workers=2, worker_batch=2, labels=labels, **options)


@pytest.mark.parametrize("tail", ["drop", "weight"])
def test_E4_a_run_that_goes_on_reads_what_it_would_have_read(tmp_path, tail):
    sizes = {"shards": "fixed", "label_skew": 0.5, "tail": tail, "task": tiny(95)}
    whole = fit(tmp_path / "a", **sizes)
    assert fit(tmp_path / "b", at=3, **sizes) is None
    again = fit(tmp_path / "b", **sizes)
    jax.tree.map(np.testing.assert_array_equal, whole.readout, again.readout)


def test_shards_are_cut_anew_for_another_number_of_workers(tmp_path):
    sizes = {"shards": "fixed", "samples": 288, "worker_batch": 4}
    assert fit(tmp_path / "a", at=2, workers=4, **sizes) is None
    run = fit(tmp_path / "a", workers=2, **sizes)
    assert run.status == "completed" and run.summary["workers"] == 2
    with pytest.raises(UserError, match="shards: reshuffled, saved with fixed"):
        fit(tmp_path / "a", workers=2, **sizes | {"shards": "reshuffled"})


def test_J4_shards_of_a_config(command, tmp_path):  # noqa: F811
    words = ("workers=4", "samples=640", "evaluations=1", "hydra.run.dir=run")
    code, out, _ = command("train", "shards=fixed", "label_skew=0.5", *words)
    assert code == 0
    assert "each worker keeps 359 or 360 samples for the whole run, 50% of them" in out
    for wrong, said in (
        (("label_skew=0.5",), "set shards=fixed too"),
        (("shards=fixed", "label_skew=0.5", "task=text"), "have no single label"),
    ):
        code, _, err = command("train", *wrong, *words)
        assert code == 2 and said in err and len(err.splitlines()) == 1
