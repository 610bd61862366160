"""Losses and gradients that are not finite: skipped or ended, and by whose fault."""

import jax
import numpy as np
import optax
import pytest
from bad_data import spoiled
from resumes import fit, steps_in
from tiny import tiny

import parsgd
from parsgd.core import mean_readout, no_sync
from parsgd.reducers import all_reduce, skip_nonfinite
from parsgd.training.observer import Observer

SIZES = {"workers": 4, "worker_batch": 2, "rounds": 8}


class Listener(Observer):
    """Keeps what is said, with the round that it is said after."""

    def __init__(self):
        self.round, self.said = 0, []

    def record(self, record):
        self.round = record["round"]

    def say(self, text):
        self.said.append((self.round, text))


def safe():
    chain = optax.chain(all_reduce(), optax.sgd(0.1, 0.9))
    return parsgd.data_parallel(skip_nonfinite(chain))


@pytest.mark.parametrize("place", ["vmap", "shard_map", "pmap"])
def test_G1_the_worker_that_made_all_skip_is_named(place):
    task = spoiled(tiny(), steps=[2, 4], worker=3, **SIZES)
    task = spoiled(task, steps=[4], worker=1, **SIZES)
    told = Listener()
    run = parsgd.fit(
        task, safe(), evaluations=4, placement=place, observer=told, **SIZES
    )
    assert run.status == "completed"
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(run.readout))
    assert np.isfinite(run.history[-1]["test_loss"])
    # Evaluated after 2, 4, 6 and 8 rounds.
    assert told.said == [
        (4, "worker 3: 1 step skipped, gradient not finite"),
        (6, "worker 1: 1 step skipped, gradient not finite"),
        (6, "worker 3: 1 step skipped, gradient not finite"),
    ]


@pytest.mark.parametrize("workers", [10, 12])
def test_finite_parameters_are_saved_of_any_number_of_lanes(tmp_path, workers):
    sizes = {"workers": workers, "worker_batch": 1, "local_steps": 1, "rounds": 1}
    apart = parsgd.local_sgd(optax.sgd(0.1))
    apart = apart._replace(sync=no_sync, readout=mean_readout)
    fit(tmp_path, algorithm=apart, placement="vmap", evaluations=1, **sizes)
    assert steps_in(tmp_path) == [1]


def test_G1_what_was_skipped_before_is_not_told_again(tmp_path, caplog):
    sizes = SIZES | {"local_steps": 1, "algorithm": safe(), "evaluations": 2}
    task = spoiled(tiny(), steps=[1, 6], worker=2, **SIZES)
    fit(tmp_path / "a", task=task, at=6, **sizes)
    (line,) = (r.getMessage() for r in caplog.records if "worker" in r.getMessage())
    assert line == "worker 2: 1 step skipped, gradient not finite"
    caplog.clear()
    fit(tmp_path / "a", task=task, **sizes)
    (again,) = (r.getMessage() for r in caplog.records if "worker" in r.getMessage())
    assert again == line


def test_G1_what_was_skipped_before_a_save_is_told_after_it(tmp_path, caplog):
    sizes = SIZES | {"local_steps": 1, "algorithm": safe(), "evaluations": 2}
    task = spoiled(tiny(), steps=[5], worker=2, **SIZES)
    fit(tmp_path / "a", task=task, at=7, **sizes)  # evaluated after 4 and 8 rounds
    assert not [r for r in caplog.records if "worker" in r.getMessage()]
    fit(tmp_path / "a", task=task, **sizes)
    (line,) = (r.getMessage() for r in caplog.records if "worker" in r.getMessage())
    assert line == "worker 2: 1 step skipped, gradient not finite"


@pytest.mark.parametrize("bad_rounds", [1, 3])
def test_G1_G4_a_diverged_run_names_the_first_worker(bad_rounds):
    sizes = SIZES | {"local_steps": 3, "rounds": 4}
    task = spoiled(tiny(), steps=[4], worker=2, workers=4, worker_batch=2)
    run = parsgd.fit(
        task, parsgd.local_sgd(optax.sgd(0.1)), max_bad_rounds=bad_rounds, **sizes
    )
    assert run.status == "diverged"
    assert run.reason.endswith("; first that of worker 2, at step 5")


def test_what_a_sync_spoils_is_told():
    method = parsgd.local_sgd(optax.sgd(0.1))
    spoils = lambda params, state: (jax.tree.map(lambda x: x / 0, params), state)
    sizes = SIZES | {"local_steps": 3, "rounds": 4}
    run = parsgd.fit(tiny(), method._replace(sync=spoils), max_bad_rounds=1, **sizes)
    said = "; that of all workers at step 4, the first of a round: by the sync or the"
    assert run.status == "diverged" and said in run.reason


def test_G1_nobody_is_named_where_all_fail_at_once():
    run = parsgd.fit(
        tiny(), parsgd.sync_sgd(optax.sgd(float("inf"))), evaluations=1, **SIZES
    )
    assert run.status == "diverged" and "worker" not in run.reason


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_G1_moving_averages_of_a_model_stay_whole_too(micro_batches):
    task = tiny()

    def init(key):
        params, _ = task.init(key)
        mask = np.full(3, -np.inf, np.float32)
        return params, {"mean": np.float32(0.0), "batches": np.int32(0), "mask": mask}

    def loss(params, model, batch, key):
        value, _ = task.loss(params, {}, batch, key)
        mean = 0.5 * model["mean"] + 0.5 * batch.x.mean()
        return value, model | {"mean": mean, "batches": model["batches"] + 1}

    def metrics(params, model, batch):
        del model
        return task.metrics(params, {}, batch)

    kept = task._replace(init=init, loss=loss, metrics=metrics)
    kept = spoiled(kept, steps=[2], worker=3, **SIZES)
    method = parsgd.sync_sgd(optax.sgd(0.1), skip_nonfinite=True)
    run = parsgd.fit(kept, method, evaluations=4, micro_batches=micro_batches, **SIZES)
    assert run.status == "completed"
    assert np.isfinite(run.model_state["mean"]) and run.model_state["mean"] != 0
    assert run.model_state["batches"] == 8 * micro_batches  # counts go on


@pytest.mark.parametrize("workers", [[0], [0, 1, 2, 3]])
def test_G1_a_round_counts_as_bad_only_if_it_is_on_all_workers(workers):
    task = tiny()
    for worker in workers:  # two steps in a row, and the last of all
        task = spoiled(task, steps=[2, 3, 7], worker=worker, **SIZES)
    method = parsgd.sync_sgd(optax.sgd(0.1), skip_nonfinite=True)
    run = parsgd.fit(task, method, max_bad_rounds=3, evaluations=1, **SIZES)
    assert run.status == "completed"
    worse = parsgd.fit(task, method, max_bad_rounds=2, evaluations=1, **SIZES)
    assert (worse.status == "diverged") == (len(workers) == 4)
