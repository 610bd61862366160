# ruff: noqa: F811  (pytest finds imported fixtures by their name)
"""A search goes on after jobs that fail, and says so where all did."""

import json

import pytest
import yaml
from command_line import SHORT, command  # noqa: F401
from processes import finished, parsgd

pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
SEARCH = ("hydra/sweeper=search", "hydra.sweep.dir=sweep", "hydra.sweeper.n_trials=3")
WORDS = ("train", "-m", *SEARCH, *SHORT)
# Of Optuna itself, as it is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def results(folder):
    """Of its jobs, in order."""
    files = sorted((folder / "sweep").glob("*/result.json"))
    return [json.loads(file.read_text()) for file in files]


def test_J1_a_failed_job_is_a_row_and_the_search_goes_on(command, tmp_path):
    code, out, err = command(*WORDS, "workers=choice(3,4)", "global_batch=64")
    assert code == 1 and "Traceback" not in err, err
    found = results(tmp_path)
    ended = {(job["config"]["workers"], job["status"]) for job in found}
    assert len(found) == 3 and ended == {(3, "failed"), (4, "completed")}
    assert "failed: sweep/1: global_batch=64 cannot be shared equally" in out
    assert "2 of 3 jobs completed" in out
    assert "page: sweep/report/index.html" in out
    best = yaml.safe_load((tmp_path / "sweep/optimization_results.yaml").read_text())
    assert best["best_params"] == {"workers": 4}
    assert best["best_value"] == found[0]["best"]["test_accuracy"]


def test_J1_a_search_in_which_all_jobs_fail_has_no_best(command, tmp_path):
    code, out, err = command(*WORDS, "workers=choice(3,5)", "global_batch=64")
    assert code == 1 and "Traceback" not in err, err
    assert "no job has a result, so there is no table: 3 failed of 3" in out
    assert out.endswith(
        "no job of this search has a score, so none of them is the best\n"
    )
    assert not (tmp_path / "sweep/optimization_results.yaml").exists()


def test_a_search_for_the_worst_is_refused(command, tmp_path):
    code, _, err = command(*WORDS, "hydra.sweeper.direction=minimize", "seed=choice(1)")
    assert code == 2 and "direction=minimize: the score of a job is" in err
    assert not (tmp_path / "sweep").exists()


RATES = ("optimizer.learning_rate=interval(0.01,0.5)", "checkpoint.rounds=10")


def test_a_search_is_repeated_and_completed_in_its_folder(command, tmp_path):
    assert command(*WORDS, *RATES)[0] == 0
    before = results(tmp_path)
    more = ("hydra.sweeper.n_trials=4", "debug=true")
    code, out, err = command(*WORDS, *RATES, *more)
    assert code == 0 and out.count("completed before") == 3, err
    assert len(results(tmp_path)) == 4 and results(tmp_path)[:3] == before


@pytest.mark.parametrize(
    "change",
    [
        ["seed=1"],
        ["optimizer.learning_rate=interval(0.1,0.5)"],
        ["hydra.sweeper.sampler.seed=1"],
    ],
)
def test_another_search_takes_no_other_trials(command, tmp_path, change):
    assert command(*WORDS, *RATES, "hydra.sweeper.n_trials=1")[0] == 0
    before = results(tmp_path)
    kept = [x for x in RATES if x.partition("=")[0] not in change[0]]
    code, _, err = command(*WORDS, *kept, *change)
    assert code == 2 and "holds the trials of a sweep already, of another" in err
    assert results(tmp_path) == before


@pytest.mark.parametrize(
    ("given", "more", "why"),
    [
        ([], ["hydra.sweeper.storage='sqlite:///x.db'"], "be numbered from 0"),
        (["hydra.sweeper.sampler.seed=null"], [], "others would be chosen"),
    ],
)
def test_a_search_that_would_come_to_others_is_not_repeated(command, given, more, why):
    words = (*WORDS, *RATES, "hydra.sweeper.n_trials=1", *given)
    assert command(*words)[0] == 0
    code, _, err = command(*words, *more)
    assert code == 2 and why in err and err.count("\n") == 1


def test_a_trial_is_not_put_where_another_is(command, tmp_path):
    assert command(*WORDS, *RATES, "hydra.sweeper.n_trials=1")[0] == 0
    file = tmp_path / "sweep/0/result.json"
    found = json.loads(file.read_text())
    found["overrides"][0] = "optimizer.learning_rate=0.3"
    file.write_text(json.dumps(found))
    code, _, err = command(*WORDS, *RATES, "hydra.sweeper.n_trials=1")
    assert code == 2 and "holds the trial optimizer.learning_rate=0.3" in err
    assert json.loads(file.read_text()) == found


def test_a_search_is_refused_the_folder_of_a_run(command, tmp_path):
    assert command("train", *SHORT, "hydra.run.dir=sweep")[0] == 0
    code, _, err = command(*WORDS, *RATES)
    assert code == 2 and "is the folder of a single run" in err
    assert not (tmp_path / "sweep/0").exists()


KILLED = """
import os
import parsgd
def digits(job):
    if job == 2:
        os._exit(3)
    return parsgd.digits()
"""


@pytest.mark.slow
def test_J1_a_search_goes_on_after_a_job_whose_process_ended(tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    (tmp_path / "own/task").mkdir(parents=True)
    (tmp_path / "own/task/killed.yaml").write_text("_target_: killed.digits\njob: 0\n")
    words = ("--config-dir", "own", "task=killed", "hydra/launcher=processes")
    search = (*WORDS, *words, "hydra.sweeper.n_jobs=2", "task.job=choice(1,2)")
    code, out, err = finished(parsgd(*search, cwd=tmp_path))
    assert code == 1 and "Traceback" not in err, err
    ended = {(job["config"]["task"]["job"], job["status"]) for job in results(tmp_path)}
    assert ended == {(1, "completed"), (2, "interrupted")}
    assert "of 3 jobs completed" in out
