"""Runs that go on under odd conditions: other phases, NaN in waiting, skipped ends."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bad_data import spoiled
from resumes import fit, stored
from tiny import tiny

import parsgd
from parsgd.data.order import Order
from parsgd.errors import FolderError
from parsgd.reducers import all_reduce, delay, skip_nonfinite

RATE = optax.sgd(0.1, 0.9)


ONE = {"workers": 1, "local_steps": 1, "worker_batch": 4, "evaluations": 1}


def spoilt(step):
    """A task with an example that is NaN, which the only worker first sees there."""
    task = tiny()
    order = Order(examples=len(task.data.train.x), workers=1, worker_batch=4)
    seen = order.indices(0, step + 1)[0].reshape(step + 1, -1)
    at = next(i for i in seen[-1] if i not in seen[:-1])
    x = np.array(task.data.train.x)
    x[at] = np.nan
    split = task.data.train._replace(x=x)
    return task._replace(data=task.data._replace(train=split))


@pytest.mark.parametrize("workers", [3, 2])
def test_a_run_goes_on_with_fewer_phases_than_it_had(tmp_path, workers):
    switched = parsgd.post_local_sgd(RATE, switch_step=3)
    size = {"samples": 4 * 3 * 18}
    fit(tmp_path / "a", algorithm=switched, config={"my": "run"}, **size)
    options = {"config": {"my": "run"}, "workers": workers, "samples": 4 * 3 * 27}
    run = fit(tmp_path / "a", algorithm=parsgd.local_sgd(RATE), **options)
    assert run.status == "completed" and run.summary["steps"] > 18


def test_a_spread_that_was_not_measured_is_none(tmp_path):
    sizes = {"rounds": 8, "local_steps": 2}
    fit(tmp_path / "a", at=5, evaluations=1, **sizes)
    run = fit(tmp_path / "a", evaluations=2, **sizes)
    assert [r["round"] for r in run.history] == [0, 4, 8]
    first, unmeasured, last = (r["spread"] for r in run.history)
    assert first == 0 and unmeasured is None and last > 0


def test_G1_a_nan_that_waits_in_the_state_is_not_saved(tmp_path):
    late = parsgd.data_parallel(RATE, reducer=optax.chain(all_reduce(), delay(4)))
    fit(tmp_path / "a", algorithm=late, task=spoilt(3), rounds=12, **ONE)
    meta, arrays = stored(tmp_path / "a")
    assert meta["step"] == 3
    for name, x in arrays.items():
        if jnp.issubdtype(np.asarray(x).dtype, jnp.floating):
            assert not np.isnan(np.asarray(x)).any(), name


def test_H5_a_config_does_not_hide_what_else_has_changed(tmp_path):
    fit(tmp_path / "a", at=2, config={"my": "run"}, seed=0)
    with pytest.raises(FolderError, match="seed: 1, saved with 0"):
        fit(tmp_path / "a", config={"my": "run"}, seed=1)
    assert fit(tmp_path / "a", config={"my": "run"}, seed=0).status == "completed"


def test_the_last_step_is_saved_where_it_was_skipped(tmp_path):
    careful = parsgd.data_parallel(RATE, reducer=skip_nonfinite(all_reduce()))
    size = {"rounds": 6, "every": 4} | ONE
    run = fit(tmp_path / "a", algorithm=careful, task=spoilt(5), **size)
    assert run.status == "completed"
    assert stored(tmp_path / "a")[0]["step"] == 6
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(run.readout))


def test_G1_bad_rounds_before_a_stop_count_after_it(tmp_path):
    task = spoiled(tiny(), steps=[4, 5, 6], worker=0, workers=1, worker_batch=4)
    careful = parsgd.sync_sgd(RATE, skip_nonfinite=True)
    options = {"algorithm": careful, "task": task, "rounds": 9, **ONE}
    options["max_bad_rounds"] = 3
    whole = fit(tmp_path / "a", **options)
    assert whole.status == "diverged" and "3 rounds in a row" in whole.reason
    fit(tmp_path / "b", at=6, **options)
    assert stored(tmp_path / "b")[0]["round"] < 7
    assert fit(tmp_path / "b", **options).reason == whole.reason
    # What has ended so ends so again.
    assert fit(tmp_path / "b", **options).reason == whole.reason
    more = fit(tmp_path / "b", **options | {"max_bad_rounds": 4})
    assert more.status == "completed" and more.summary["steps"] == 9


def test_a_diverged_run_may_go_on_with_another_rate(tmp_path):
    task = spoiled(tiny(), steps=[4, 5, 6], worker=0, workers=1, worker_batch=4)
    options = {"task": task, "rounds": 9, "max_bad_rounds": 3, **ONE}
    careful = functools.partial(parsgd.sync_sgd, skip_nonfinite=True)
    rates = [{"optimizer": {"learning_rate": rate}} for rate in (0.1, 0.01)]
    first = fit(tmp_path, algorithm=careful(RATE), config=rates[0], **options)
    assert first.status == "diverged"
    lower = careful(optax.sgd(0.01, 0.9))
    again = fit(tmp_path, algorithm=lower, config=rates[1], **options)
    assert again.status == "completed" and again.summary["steps"] == 9
