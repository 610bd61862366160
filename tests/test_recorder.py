"""Runs of a script in files, which a report compares with any others."""

import json

import optax
import pytest
from tiny import tiny

import parsgd
from parsgd import results
from parsgd.errors import FolderError


class Noted(parsgd.Observer):
    """Every call that it got."""

    def __init__(self):
        self.calls = []

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name in vars(parsgd.Observer) and not name.startswith("_"):
            self.calls.append(name)
        return found


def run(folder, seed=0, strategy="local_sgd", observer=None, **more):
    recorder = parsgd.Recorder(folder, strategy, config=more, observer=observer)
    method = parsgd.local_sgd(optax.sgd(0.1))
    sizes = {"workers": 2, "local_steps": 2, "worker_batch": 4, "rounds": 4}
    return parsgd.fit(tiny(), method, **sizes, seed=seed, observer=recorder)


def test_runs_are_rows_and_seeds_are_repeats(tmp_path):
    for seed in (0, 1):
        run(tmp_path / f"near-{seed}", seed, pull=0.5)
    done = run(tmp_path / "far", pull=0.1)
    table = results.table(results.load(tmp_path))
    assert sorted(table["n"]) == [1, 2]
    assert {*table["strategy"]} == {"local_sgd"} and sorted(table["pull"]) == [0.1, 0.5]
    assert {*table["local_steps"]} == {2} and {*table["worker_batch"]} == {4}
    record = json.loads((tmp_path / "far/result.json").read_text())
    assert record["status"] == "completed" and record["versions"]["jax"]
    assert record["summary"]["task"] == "tiny" and record["machine"]["devices"]
    lines = (tmp_path / "far/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [
        record["step"] for record in done.history
    ]


def test_another_observer_is_told_too_and_all_of_it(tmp_path):
    noted = Noted()
    run(tmp_path / "a", observer=noted)
    assert [*dict.fromkeys(noted.calls)] == ["start", "record", "progress", "end"]


def test_a_run_that_fails_is_interrupted_and_lets_the_folder_go(tmp_path):
    class Failing(parsgd.Observer):
        ended = ()

        def progress(self, step, steps, record):
            raise RuntimeError("stop")

        def end(self, run):
            self.ended = (run,)

    failing = Failing()
    with pytest.raises(RuntimeError, match="stop"):
        run(tmp_path / "a", observer=failing)
    assert failing.ended == (None,)
    assert results.read_job(tmp_path / "a").status == "interrupted"
    assert run(tmp_path / "a").status == "completed"
    assert results.read_job(tmp_path / "a").status == "completed"


def test_a_folder_that_another_run_holds_is_refused(tmp_path):
    with results.held(tmp_path / "a"), pytest.raises(FolderError, match="another job"):
        run(tmp_path / "a")
