"""Runs of a script in files, which a report compares with any others."""

import enum
import json
import shutil

import numpy as np
import optax
import pytest
from tiny import tiny

import parsgd
from parsgd import results
from parsgd.errors import FolderError, UserError


class Noted(parsgd.Observer):
    """Every call that it got."""

    def __init__(self):
        self.calls = []

    def start(self, summary, lines):
        self.calls.append("start")

    def progress(self, step, steps, record):
        self.calls.append("progress")

    def record(self, record):
        self.calls.append("record")

    def end(self, run):
        self.calls.append("end")


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


def test_what_is_shown_says_which_run_it_is(tmp_path, capsys):
    run(tmp_path / "a", observer=parsgd.Progress())
    assert capsys.readouterr().out.startswith(f"local_sgd in {tmp_path / 'a'}:\n")


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
    with results.held(tmp_path / "a"), pytest.raises(FolderError) as error:
        run(tmp_path / "a")
    said = str(error.value)
    assert "another job" in said and "in a script, the Recorder's folder" in said


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"workers": 4}, "'workers', which a Recorder fills in"),
        ({"seed": 1}, "'my_seed'"),
        ({"debug": True}, "'debug'"),
        ({"f": {1, 2}}, r"config\['f'\]: a set cannot be stored"),
        ({"f": 1j}, "a complex cannot be stored"),
        ({"f": b"x"}, "a bytes cannot be stored"),
        (["a"], "give a dict"),
        ({"target_accuracy": 97}, "target_accuracy=97: must be a fraction"),
    ],
)
def test_a_config_that_would_mix_or_lose_runs_is_refused_at_once(
    tmp_path, config, said
):
    with pytest.raises(UserError, match=said):
        parsgd.Recorder(tmp_path, "mine", config=config)
    with pytest.raises(UserError, match="folder=3: give the name of a folder"):
        parsgd.Recorder(3, "mine", config={})
    with pytest.raises(UserError, match="observer=Progress: give an observer"):
        parsgd.Recorder(tmp_path, "mine", observer=parsgd.Progress)


def test_numbers_of_numpy_and_enums_are_stored_as_what_they_are(tmp_path):
    class Kind(enum.StrEnum):
        WIDE = "wide"

    odd = {"a": np.float64(0.5), "b": np.str_("x"), "c": Kind.WIDE, "d": np.arange(2)}
    run(tmp_path / "a", **odd, inner={"e": np.float64(1.5)}, clip=float("inf"))
    stored = json.loads((tmp_path / "a/result.json").read_text())["config"]
    assert stored["a"] == 0.5 and stored["b"] == "x" and stored["c"] == "wide"
    assert stored["d"] == [0, 1] and stored["inner"] == {"e": 1.5}
    assert stored["clip"] == "inf"  # and no null, which would be another's


def test_runs_of_another_length_are_no_repeats(tmp_path):
    for seed, rounds in ((0, 2), (1, 4)):
        recorder = parsgd.Recorder(tmp_path / str(seed), "sync_sgd")
        sizes = {"worker_batch": 4, "rounds": rounds, "seed": seed}
        parsgd.fit(tiny(), parsgd.sync_sgd(optax.sgd(0.1)), **sizes, observer=recorder)
    assert [*results.table(results.load(tmp_path))["n"]] == [1, 1]


def test_a_result_that_cannot_be_written_ends_the_other_observer_all_the_same(tmp_path):
    class Removing(Noted):
        def record(self, record):
            if record["step"]:
                shutil.rmtree(tmp_path / "a")

    noted = Removing()
    with pytest.raises(UserError, match="cannot write"):
        run(tmp_path / "a", observer=noted)
    assert noted.calls[-1] == "end"


def test_what_is_no_observer_is_refused():
    for wrong, name in ((parsgd.Progress, "Progress"), ("bar", "'bar'")):
        with pytest.raises(UserError, match=f"observer={name}: give an observer"):
            parsgd.fit(
                tiny(), parsgd.single(optax.sgd(0.1)), worker_batch=4, rounds=1,
                observer=wrong,
            )  # fmt: skip


def test_a_strategy_itself_is_no_name(tmp_path):
    with pytest.raises(UserError, match="keeps the algorithm's name"):
        parsgd.Recorder(tmp_path, parsgd.single(optax.sgd(0.1)))  # type: ignore
