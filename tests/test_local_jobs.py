"""Jobs in processes of this machine end, and save, with their sweep."""

import contextlib
import json
import os
import signal
import time

import psutil
import pytest
from processes import alive, finished, parsgd, runs

from parsgd import cores
from parsgd.cli.children import ask_to_end

LONG = "4000000000"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(cores.usable()) < 2, reason="the jobs would take turns"),
]


@pytest.fixture
def started(tmp_path):
    """Starts a sweep in a process group of its own."""
    sweeps = []

    def start(launcher, *words):
        launcher = f"hydra/launcher={launcher}"
        words = ("train", "-m", launcher, *words, "hydra.sweep.dir=sweep")
        sweeps.append(parsgd(*words, cwd=tmp_path, process_group=0))
        return sweeps[-1]

    yield start
    for sweep in sweeps:
        sweep.kill()


def wait_for(sweep, *files):
    """Until the files hold something."""
    deadline = time.monotonic() + 240
    for file in files:
        while not (file.is_file() and file.read_text()):
            assert sweep.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)


def children(sweep, count):
    """Its processes, once there are so many: others may come and go."""
    deadline = time.monotonic() + 20
    while True:
        found = psutil.Process(sweep.pid).children(recursive=True)
        found = [child for child in found if runs(child.pid)]
        if len(found) == count:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


@pytest.mark.parametrize(
    "launcher, way",
    [
        *(("local", way) for way in ("SIGINT", "SIGTERM", "Ctrl-C", "SIGKILL")),
        ("processes", "Ctrl-C"),
        ("processes", "SIGKILL"),
    ],
)
def test_jobs_end_with_the_command(started, tmp_path, launcher, way):
    sweep = started(launcher, "workers=1,2", f"samples={LONG}")
    files = (tmp_path / "sweep" / job / "metrics.jsonl" for job in "01")
    wait_for(sweep, *files)
    # For each job a controller and itself; or two jobs and two processes of joblib.
    processes = children(sweep, 4)
    if way == "Ctrl-C":
        os.killpg(sweep.pid, signal.SIGINT)
    else:
        sweep.send_signal(signal.Signals[way])
    code, _, err = finished(sweep)
    assert not alive([process.pid for process in processes])
    if way != "SIGKILL":
        assert code == (143 if way == "SIGTERM" else 130)
        assert "interrupted. The same command with" in err
        lines = [x for x in err.splitlines() if "parsgd: waiting for" not in x]
        assert len(lines) == 1, err


def saved(folder):
    """The steps of the checkpoints of each job."""
    jobs = [folder / "sweep" / job / "checkpoints" for job in "01"]
    return [{int(x.name) for x in job.iterdir() if x.name.isdigit()} for job in jobs]


@pytest.mark.parametrize(
    "launcher, way",
    [
        ("local", "SIGTERM"),
        *(("processes", way) for way in ("SIGTERM", "SIGHUP", "Ctrl-C")),
    ],
)
def test_jobs_save_when_the_command_is_asked_to_end(started, tmp_path, launcher, way):
    words = ("workers=1,2", f"samples={LONG}", "checkpoint.rounds=100000000")
    files = [tmp_path / "sweep" / job / "metrics.jsonl" for job in "01"]
    before = [set(), set()]
    for count in (1, 2):
        sweep = started(launcher, *words)
        wait_for(sweep, *files)
        processes = children(sweep, 4)
        number = signal.SIGINT if way == "Ctrl-C" else signal.Signals[way]
        end = os.killpg if way == "Ctrl-C" else os.kill
        end(sweep.pid, number)
        code, _, err = finished(sweep)
        assert code == 128 + number and "Traceback" not in err
        assert not alive([process.pid for process in processes])
        for job, old, steps in zip(files, before, saved(tmp_path), strict=True):
            assert old < steps and len(steps) == count, err
            log = (job.parent / "train.log").read_text()
            goes_on = [f"goes on from step {step}, " in log for step in old]
            assert goes_on == [True] * len(old)
            job.unlink()
        before = saved(tmp_path)


STUBBORN = """
import pathlib, signal, time
def digits(job):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path(f"begun{job}").write_text("yes")
    time.sleep(600)
"""


@pytest.mark.parametrize("launcher", ["local", "processes"])
def test_a_second_signal_ends_jobs_that_take_long(started, tmp_path, launcher):
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    (tmp_path / "own/task").mkdir(parents=True)
    stored = "_target_: stubborn.digits\njob: 0\n"
    (tmp_path / "own/task/stubborn.yaml").write_text(stored)
    sweep = started(launcher, "--config-dir", "own", "task=stubborn", "task.job=0,1")
    wait_for(sweep, tmp_path / "begun0", tmp_path / "begun1")
    processes = children(sweep, 4)
    sweep.send_signal(signal.SIGTERM)
    said = sweep.stderr.readline()
    assert "waiting for 2 jobs to end, and to save if checkpoint.* says" in said
    sweep.send_signal(signal.SIGTERM)
    code, _, err = finished(sweep, 30)
    assert code == 143 and len(err.splitlines()) == 1, err
    assert not alive([process.pid for process in processes])


def test_jobs_that_take_too_long_are_asked_once_and_waited_for_no_more(monkeypatch):
    monkeypatch.setattr("parsgd.cli.children.GRACE_SECONDS", 1.0)
    told = []
    monkeypatch.setattr(os, "kill", lambda *words: told.append(words))
    ask_to_end(lambda: [7, 8] if len(told) < 9 else [])
    assert sorted(told) == [(7, signal.SIGTERM), (8, signal.SIGTERM)]


def running(sweep, metrics):
    """The process of the job that writes this file."""
    for process in psutil.Process(sweep.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if str(metrics) in [file.path for file in process.open_files()]:
                return process
    raise AssertionError(f"nobody has {metrics} open")


@pytest.mark.parametrize(
    "launcher, why",
    [
        ("local", "its process ended before the job did: it was killed, perhaps"),
        ("processes", "its process was killed (SIGKILL), perhaps for want of memory"),
    ],
)
def test_a_killed_job_is_a_row_and_the_others_complete(
    started, tmp_path, launcher, why
):
    words = (f"samples={LONG},1280,640,320", "evaluations=2")
    sweep = started(launcher, *words)
    metrics = tmp_path / "sweep/0/metrics.jsonl"
    wait_for(sweep, tmp_path / "sweep/1/result.json", metrics)
    running(sweep, metrics).kill()
    code, out, err = finished(sweep)
    assert code == 1 and "Traceback" not in err
    assert f"parsgd: job #0: {why}" in err
    assert f"interrupted: sweep/0: {why}" in out
    assert "3 of 4 jobs completed" in out
    record = json.loads((tmp_path / "sweep/0/result.json").read_text())
    assert record["final"]["round"] == 0 and record["config"]["samples"] == int(LONG)
    assert record["overrides"] == [f"samples={LONG}", "evaluations=2"]


@pytest.mark.parametrize(
    "number, words",
    [
        (signal.SIGTERM, ("checkpoint.rounds=100000000",)),
        (signal.SIGINT, ()),
    ],
)
def test_a_job_asked_to_end_alone_is_a_row_and_the_others_complete(
    started, tmp_path, number, words
):
    saves = bool(words)
    words = (f"samples={LONG},1280,640", "evaluations=2", *words)
    sweep = started("processes", *words)
    metrics = tmp_path / "sweep/0/metrics.jsonl"
    wait_for(sweep, tmp_path / "sweep/1/metrics.jsonl", metrics)
    running(sweep, metrics).send_signal(number)
    code, out, err = finished(sweep)
    assert code == 1 and "Traceback" not in err, err
    why = f"its process was asked to end ({number.name})"
    assert f"parsgd: job #0: {why}" in err
    assert f"interrupted: sweep/0: {why}" in out
    assert "2 of 3 jobs completed" in out
    assert bool([*(tmp_path / "sweep/0/checkpoints").glob("[1-9]*")]) == saves


END = """
import os, sys
import parsgd
def digits(job):
    if job < 0:
        os._exit(3)
    return parsgd.digits()
"""


def test_a_job_whose_process_ends_before_it_begins_is_a_row(started, tmp_path):
    (tmp_path / "ends.py").write_text(END)
    (tmp_path / "own/task").mkdir(parents=True)
    (tmp_path / "own/task/ends.yaml").write_text("_target_: ends.digits\njob: 0\n")
    task = ("--config-dir", "own", "task=ends", "task.job=0,-1,1,-2,2,3")
    sweep = started("processes", *task, "samples=640", "evaluations=1")
    code, out, err = finished(sweep)
    assert code == 1 and "Traceback" not in err
    for number in (1, 3):
        said = f"sweep/{number}: its process ended before the job did"
        assert f"interrupted: {said}" in out
        assert f"job #{number}: its process ended" in err
    assert "4 of 6 jobs completed" in out
    record = json.loads((tmp_path / "sweep/3/result.json").read_text())
    assert record["config"]["task"]["job"] == -2
