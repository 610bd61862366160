"""``hydra/launcher=local``: jobs end with their sweep; one that was killed is told."""

import os
import signal
import time

import psutil
import pytest
from processes import alive, finished, parsgd

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

    def start(*words):
        words = ("train", "-m", "hydra/launcher=local", *words, "hydra.sweep.dir=sweep")
        sweeps.append(parsgd(*words, cwd=tmp_path, process_group=0))
        return sweeps[0]

    yield start
    for sweep in sweeps:
        sweep.kill()


def wait_for(sweep, *files):
    """Its processes once the files hold something."""
    deadline = time.monotonic() + 240
    for file in files:
        while not (file.is_file() and file.read_text()):
            assert sweep.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
    children = psutil.Process(sweep.pid).children(recursive=True)
    return [child for child in children if alive([child.pid])]


@pytest.mark.parametrize("way", ["SIGINT", "SIGTERM", "Ctrl-C", "SIGKILL"])
def test_jobs_end_with_the_command(started, tmp_path, way):
    sweep = started("workers=1,2", f"samples={LONG}")
    files = (tmp_path / "sweep" / job / "metrics.jsonl" for job in "01")
    processes = wait_for(sweep, *files)
    assert len(processes) == 4  # a controller and a job, twice
    if way == "Ctrl-C":
        os.killpg(sweep.pid, signal.SIGINT)
    else:
        sweep.send_signal(signal.Signals[way])
    code, _, err = finished(sweep)
    assert not alive([process.pid for process in processes])
    if way != "SIGKILL":
        assert code == (143 if way == "SIGTERM" else 130)
        assert "interrupted. The same command with" in err
        assert len(err.splitlines()) == 1


def test_a_killed_job_is_told_and_the_others_complete(started, tmp_path):
    sweep = started(f"samples={LONG},1280", "evaluations=1")
    metrics = tmp_path / "sweep/0/metrics.jsonl"
    processes = wait_for(sweep, tmp_path / "sweep/1/result.json", metrics)
    deadline = time.monotonic() + 60
    while len(processes) > 2:  # the other's take a moment to go
        assert time.monotonic() < deadline
        processes = wait_for(sweep)
    processes[-1].kill()
    code, out, err = finished(sweep)
    assert code == 1 and "Traceback" not in err
    assert "parsgd: job #0: its process ended before the job did" in err
    assert "interrupted: sweep/0: no result.json" in out
    assert "1 of 2 jobs completed" in out
