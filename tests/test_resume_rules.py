"""Elastic rules and positions in the data, one by one."""

import errno
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from resumes import (
    Watcher,
    assert_same_history,
    assert_same_state,
    fit,
    share_engines,
    stored,
)
from test_resume import as_many, assert_equal
from tiny import scalar, tiny

import parsgd
from parsgd import UserError
from parsgd.checkpoint import leaves, resize
from parsgd.checkpoint.agreed import Unreadable, by_all
from parsgd.checkpoint.choice import chosen
from parsgd.checkpoint.leaves import Leaf
from parsgd.checkpoint.names import NEEDED
from parsgd.core import TrainState
from parsgd.errors import FolderError
from parsgd.training.plan import Origin, make_plan
from parsgd.training.resumed import resumed_plan, resumed_steps
from parsgd.training.segments import segments


def own(x, workers, dtype="float32"):
    """How `resize` fits what 4 workers have into ``workers``."""
    x = np.asarray(x, dtype)
    new = Leaf((workers, *x.shape[1:]), dtype, False)
    return resize._fitted("x", x, Leaf(x.shape, dtype, False), new, workers)


def test_H3_residuals_keep_their_mean():
    out, rule = own([[1.0, 0.0], [3.0, 0.0], [5.0, 1.0], [7.0, 1.0]], 3)
    np.testing.assert_array_equal(out, [[4.0, 0.5]] * 3)
    assert rule == resize.MEAN


def test_H3_equal_values_keep_their_bits_and_counts_are_dealt():
    third = np.float32(1) / 3
    out, rule = own([[third]] * 4, 3)
    assert (out == third).all() and rule == resize.KEPT
    out, rule = own([[1], [2], [3], [4]], 6, "int32")
    assert out[:, 0].tolist() == [1, 2, 3, 4, 1, 2] and rule == resize.DEALT


@pytest.mark.parametrize(("count", "width"), [(2, 4), (1, 7), (8, 1)])
def test_H3_stripes_are_split_anew(count, width):
    # 7 columns over 4 owners, two each: the last has a column of zeros added.
    x = np.arange(8, dtype=np.float32).reshape(4, 1, 2)
    x[3, 0, 1] = 0
    shared = count == 1
    new = Leaf((1, width) if shared else (count, 1, width), "float32", shared)
    out, rule = resize._fitted("x", x, Leaf(x.shape, "float32", False), new, count)
    assert rule == resize.SPLIT and out.shape == new.shape
    assert out.reshape(-1)[:7].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_H3_stripes_of_more_owners_than_columns_are_not_averaged():
    x = np.float32([5, 7, 0, 0]).reshape(4, 1, 1)  # 2 columns
    for count, wanted in ((2, [5, 7]), (8, [5, 7] + 6 * [0])):
        old, new = (
            Leaf(x.shape, "float32", False),
            Leaf((count, 1, 1), "float32", False),
        )
        out, rule = resize._fitted("s/owner_error/w", x, old, new, count)
        assert out.reshape(-1).tolist() == wanted and rule == resize.SPLIT


def test_H3_an_array_without_a_rule_is_an_error():
    old, new = Leaf((4, 2, 2), "float32", False), Leaf((2, 3, 3), "float32", False)
    with pytest.raises(UserError, match="no rule to get from one to the other"):
        resize._fitted("x", np.zeros((4, 2, 2), np.float32), old, new, 2)


def test_H3_the_readout_stays_where_it_depends_on_workers(tmp_path, monkeypatch):
    share_engines(monkeypatch)
    algorithm = parsgd.block_momentum(optax.sgd(0.1), nesterov=True)  # eta = 1 - 1/W
    run = fit(tmp_path / "a", algorithm=algorithm, workers=4, worker_batch=3)
    readout, lines = as_many(tmp_path / "a", tmp_path / "b", algorithm, 2)
    assert_equal(readout, run.readout, exact=False)
    assert any("moved so that it stays" in line for line in lines)
    (_, old), (_, new) = stored(tmp_path / "a"), stored(tmp_path / "b")
    for name in ("w1", "w2"):
        assert (new[f"strategy/anchor/{name}"] == new[f"params/{name}"]).all()
        assert (old[f"params/{name}"] != new[f"params/{name}"]).any()


@pytest.mark.parametrize("sizes", [{"workers": 2}, {"worker_batch": 2}])
def test_data_goes_on_at_the_same_samples(tmp_path, monkeypatch, sizes):
    share_engines(monkeypatch)
    options = {"samples": 12 * 18, "local_steps": 1}
    fit(tmp_path / "a", at=11, **options)  # 10 steps of 12 samples
    run = fit(tmp_path / "a", **options | sizes)
    batch = {"workers": 8, "worker_batch": 6}[next(iter(sizes))]
    last = run.history[-1]
    done = stored(tmp_path / "a")[0]["origin"]
    assert done[:2] == [10, 10] and done[2] == 120 // batch
    assert last["samples"] == 216
    assert last["step"] == 10 + (216 - 120) // batch
    assert last["epoch"] == pytest.approx(216 / 96)


def test_a_longer_run_goes_on_from_a_short_last_round():
    # 10 steps with H = 4 end with a round of 2; 20 steps do not stop there.
    plan = make_plan(96, worker_batch=8, local_steps=4, samples=160)
    phases = parsgd.core.phases(parsgd.local_sgd(optax.sgd(0.1)))
    meta = {"step": 10, "round": 3, "origin": Origin(), "global_batch": 8}
    meta |= {"batch": 10, "samples": 80, "history": [0, 1, 2]}
    moved = resumed_plan(plan, phases, meta, False)
    assert moved.origin == Origin(10, 3, 10)
    assert [(s.local_steps, s.rounds) for s in segments(moved, phases)] == [
        (4, 2),
        (2, 1),
    ]
    whole = meta | {"step": 8, "round": 2, "batch": 8}
    assert resumed_plan(plan, phases, whole, False).origin == Origin()
    with pytest.raises(UserError, match="the budget is 5 steps"):
        short = make_plan(96, worker_batch=8, local_steps=4, samples=40)
        resumed_plan(short, phases, meta, False)


@pytest.mark.parametrize("budget", [{"epochs": 5}, {"samples": 360}, {"rounds": 12}])
@pytest.mark.parametrize("batch", [4, 8, 24])
@pytest.mark.parametrize("tail", ["drop", "weight"])
def test_the_length_of_a_resumed_run_needs_no_phases(budget, batch, tail):
    h = 4
    options = {"local_steps": h, "tail": tail}
    before = make_plan(100, worker_batch=8, **options, **budget)
    schedule = parsgd.core.phases(parsgd.local_sgd(optax.sgd(0.1)))
    after = make_plan(100, worker_batch=batch, **options, **budget)
    for origin in (Origin(), Origin(6, 2, 3)):
        old = before._replace(origin=origin)
        for step in (8, 10, 12):
            meta = {"step": step, "round": 2 + step // h, "origin": [*origin]}
            meta |= {"batch": old.batch(step), "samples": old.samples_until(step)}
            meta["global_batch"] = 8
            in_rounds = "rounds" in budget
            plan = resumed_plan(after, schedule, meta, in_rounds)
            assert resumed_steps(after, meta, in_rounds) == plan.steps


def test_E4_order_after_resume_is_the_undisturbed_one():
    plan = make_plan(64, worker_batch=8, epochs=4, seed=3)
    moved = plan.moved(Origin(10, 10, 10))
    for step in range(10, plan.steps):
        assert moved.batch(step) == plan.batch(step)
        assert moved.samples_until(step) == plan.samples_until(step)


@pytest.mark.parametrize("make", [parsgd.sync_sgd, parsgd.local_sgd])
def test_E5_draws_go_on_and_differ_between_steps_and_workers(
    make, tmp_path, monkeypatch
):
    share_engines(monkeypatch)
    task = tiny()

    def loss(params, model, batch, key):
        value, _ = task.loss(params, {}, batch, key)
        draw, step = jax.random.normal(key), model["step"]
        model = {"draws": model["draws"].at[step].set(draw), "step": step + 1}
        return value + draw * jnp.mean(params["w2"]), model

    start = {"draws": jnp.zeros(6), "step": jnp.int32(0)}
    options = {"task": task._replace(init=lambda k: (task.init(k)[0], start))}
    options["task"] = options["task"]._replace(loss=loss)
    options |= {"algorithm": make(optax.sgd(0.1, 0.9)), "local_steps": 1}
    whole = fit(tmp_path / "a", **options)
    fit(tmp_path / "b", at=4, **options)
    assert stored(tmp_path / "b")[0]["step"] == 3
    run = fit(tmp_path / "b", **options)
    assert_same_state(tmp_path / "a", tmp_path / "b")
    assert_same_history(whole.history, run.history)
    draws = stored(tmp_path / "a")[1]["model/draws"]  # [W, steps]
    assert draws.shape == (3, 6) and len({*draws.ravel().tolist()}) == 18
    fit(tmp_path / "c", seed=1, **options)
    assert not np.isin(stored(tmp_path / "c")[1]["model/draws"], draws).any()


def test_H4_H10_names_are_unique_and_empty_arrays_come_from_the_template():
    tree = {"a": {"b": jnp.ones(2)}, "a/b": jnp.zeros(2)}
    assert len({*leaves.names(tree)}) == 2
    state = parsgd.TrainState(
        jnp.int32(1), jax.random.key(7), {"w": jnp.ones(3)}, {}, jnp.zeros((0, 4))
    )
    packed = leaves.pack(state)
    assert {*packed} == {"step", "key", "params/w"}
    again = leaves.unpack(state, packed)
    assert jax.tree.structure(again) == jax.tree.structure(state)
    assert jax.random.bits(again.key, 10).tolist() == (
        jax.random.bits(state.key, 10).tolist()
    )


def test_evaluations_stay_where_they_were(tmp_path, monkeypatch):
    share_engines(monkeypatch)
    whole = fit(tmp_path / "a", evaluations=4)
    for at in (1, 2, 3, 4, 5, None):
        watcher = Watcher(at)
        fit(tmp_path / "b", evaluations=4, watcher=watcher)
    rounds = [r["round"] for r in stored(tmp_path / "b")[0]["history"]]
    assert rounds == [r["round"] for r in whole.history]


def test_a_diverging_state_is_not_saved(tmp_path):
    task, algorithm = scalar(np.ones(96)), parsgd.sync_sgd(optax.sgd(1e20))
    run = fit(tmp_path / "a", algorithm=algorithm, local_steps=1, task=task)
    assert run.status == "diverged"
    assert all(np.isfinite(x).all() for x in stored(tmp_path / "a")[1].values())


def test_H3_the_summary_has_the_numbers_of_workers_of_before(tmp_path, monkeypatch):
    share_engines(monkeypatch)
    sizes = {"worker_batch": 3, "samples": 288, "local_steps": 2}
    assert fit(tmp_path / "a", at=2, workers=4, **sizes) is None
    assert fit(tmp_path / "a", at=4, workers=2, **sizes) is None
    run = fit(tmp_path / "a", workers=2, **sizes)
    assert run.summary["workers"] == 2
    assert run.summary["earlier_workers"] == [[4, 2]]
    assert fit(tmp_path / "b", workers=2, **sizes).summary["earlier_workers"] == []


def test_the_summary_has_the_places_of_before(tmp_path):
    assert fit(tmp_path / "a", at=2, placement="vmap") is None
    assert fit(tmp_path / "a", at=4, placement="debug") is None
    run = fit(tmp_path / "a", placement="debug")
    assert run.summary["earlier_placements"] == [[{"kind": "vmap"}, 3]]
    assert run.summary["earlier_settings"] == []
    same = fit(tmp_path / "b", placement="vmap")
    assert same.summary["earlier_placements"] == []


def test_other_versions_than_those_that_saved_are_said(tmp_path, monkeypatch):
    share_engines(monkeypatch)
    fit(tmp_path / "a", at=2)
    same = Watcher(at=3)
    fit(tmp_path / "a", watcher=same)
    assert not [line for line in same.lines if line.startswith("saved with")]
    file = max((tmp_path / "a").glob("*/meta/metadata"), key=lambda f: f.parts[-3])
    meta = json.loads(file.read_text())
    now = meta["versions"]["jax"]
    meta["versions"] |= {"jax": "0.10.1.dev7"}
    file.write_text(json.dumps(meta))
    other = Watcher()
    assert fit(tmp_path / "a", watcher=other).status == "completed"
    (line,) = [line for line in other.lines if line.startswith("saved with")]
    assert line.startswith(f"saved with jax 0.10.1.dev7, now {now}: it need not end")


def test_the_start_is_not_the_best_to_go_on_from(tmp_path):
    """It is never saved."""
    scores = [(0, 0.9), (3, 0.5), (6, 0.7), (9, 0.6)]
    history = [{"step": step, "test_accuracy": score} for step, score in scores]
    meta = dict.fromkeys(NEEDED) | {"history": history}
    (tmp_path / "9" / "meta").mkdir(parents=True)
    (tmp_path / "9" / "meta" / "metadata").write_text(json.dumps(meta))
    assert chosen(tmp_path, [9, 6, 3], "best") == 6
    history[:] = history[:1]
    (tmp_path / "9" / "meta" / "metadata").write_text(json.dumps(meta))
    with pytest.raises(FolderError, match="no finite evaluation is recorded"):
        chosen(tmp_path, [9, 6, 3], "best")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (MemoryError(), FolderError, "cannot be read now .*MemoryError"),
        (
            PermissionError(errno.EACCES, "no"),
            FolderError,
            "such as memory, permission",
        ),
        (
            RuntimeError("RESOURCE_EXHAUSTED: out of memory"),
            FolderError,
            "such as memory, permission",
        ),
        (FileNotFoundError(errno.ENOENT, "gone"), Unreadable, "gone"),
        (ValueError("it is torn"), Unreadable, "torn"),
    ],
)
def test_H1_what_a_process_lacks_is_no_fault_of_a_checkpoint(error, kind, message):
    def read():
        raise error

    with pytest.raises(kind, match=message):
        by_all(read)


def test_H3_keys_with_a_slash_have_names_of_their_own():
    """As modules of modules have them: params/a/b is another leaf than params/a~1b."""
    params = {"a/b": 1, "a": {"b": 2, "~": 3}}
    state = TrainState(None, None, params, None, {"x": 4})
    found = dict(zip(leaves.names(state), jax.tree.leaves(state), strict=True))
    assert found == {
        "params/a/b": 2,
        "params/a/~0": 3,
        "params/a~1b": 1,
        "strategy/x": 4,
    }
