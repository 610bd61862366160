"""Jobs in processes of this machine end with their sweep; a killed one is told."""

import contextlib
import json
import os
import signal
import time

import psutil
import pytest
from processes import alive, finished, parsgd, runs

from parsgd import cores

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
        return sweeps[0]

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
        assert len(err.splitlines()) == 1, err


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
