# ruff: noqa: F811  (pytest finds imported fixtures by their name)
"""Sweeps: counted before, resumed after, one failure among others."""

import functools
import json
import signal
import subprocess
import sys
import time

import pytest
from command_line import SHORT, command, in_new_process  # noqa: F401
from composed import compose

import parsgd.report
from parsgd import cluster
from parsgd.cli.launchers import make_devices

SWEEP = ("train", "-m", "hydra.sweep.dir=sweep", *SHORT)


@pytest.fixture
def no_drawing(monkeypatch, tmp_path):
    """The report costs seconds, and has tests of its own."""
    page = tmp_path / "index.html"
    page.write_text("a table")
    paths = parsgd.report.Paths(tmp_path, page, page, page, (), page)
    monkeypatch.setattr(parsgd.report, "build", lambda *_: paths)


def status(tmp_path):
    folders = [p for p in (tmp_path / "sweep").iterdir() if p.name.isdigit()]
    read = lambda folder: json.loads((folder / "result.json").read_text())["status"]
    return {int(folder.name): read(folder) for folder in folders}


def test_J11_the_count_is_the_product_and_comes_first(command, tmp_path):
    lists = ("strategy=sync_sgd,local_sgd", "workers=1,2,4", "scaling=none,linear")
    code, out, _ = command("train", "--dry-run", "-m", *lists)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "12 jobs"
    assert lines[2] == "#1 strategy=sync_sgd workers=1 scaling=linear"
    assert len(lines) == 13
    assert not (tmp_path / "multirun").exists()


def test_choices_by_a_pattern_are_jobs(command):
    code, out, _ = command("train", "--dry-run", "-m", "strategy=glob(local*)")
    assert code == 0 and "#0 strategy=local_sgd" in out and "1 job" in out
    code, _, err = command("train", "--dry-run", "-m", "task.model.features=glob(*)")
    assert code == 2 and "the sweep has no jobs" in err


@pytest.mark.parametrize("words", [["hydra.run.dir="], ["-m", "hydra.sweep.dir="]])
def test_an_empty_name_is_not_the_current_folder(command, tmp_path, words):
    code, _, err = command("train", *words, "rounds=2", "epochs=null")
    assert code == 2 and "is empty: name a folder" in err and not [*tmp_path.iterdir()]


def test_J11_a_dry_run_finds_what_a_job_would_stumble_over(command):
    for multi in ([], ["-m"]):
        wrong = ("epochs=1", "samples=100", "--dry-run")
        code, out, err = command("train", *multi, *wrong)
        assert code == 2 and "give exactly one budget" in err and not out
    code, _, err = command("train", "-m", "workers=1,two", "--dry-run")
    assert code == 2
    assert "workers=two" in err


def test_J11_a_dry_run_marks_what_is_done(command, no_drawing):
    """Also where a part of the schedule is known only when the run is built."""
    words = (*SWEEP, "schedule=cosine")
    assert command(*words, "seed=0")[0] == 0
    _, out, _ = command(*words, "--dry-run", "seed=0,1")
    first, second, caveat = out.splitlines()[1:]
    assert first.endswith("seed=0 (completed before)") and second.endswith("seed=1")
    assert "data" in caveat and "are found as they start" in caveat


def test_J11_an_experiment_brings_its_own_sweep(command):
    code, out, _ = command("train", "--dry-run", "+experiment=demo", "seed=5")
    assert code == 0
    assert out.startswith("16 jobs\n#0 strategy=sync_sgd workers=2 scaling=none seed=5")


def test_J1_J12_a_failed_job_is_a_row_and_alone_is_redone(tmp_path):
    arguments = (*SWEEP, "global_batch=64,10,32", "workers=4")
    done = in_new_process(tmp_path, *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("3 jobs in sweep\n#0 epochs=1")
    assert "Traceback" not in done.stdout + done.stderr
    assert status(tmp_path) == {0: "completed", 1: "failed", 2: "completed"}
    assert "failed: sweep/1: global_batch=10" in done.stdout
    assert "global_batch=10" in (tmp_path / "sweep/1/train.log").read_text()
    page = tmp_path / "sweep/report/index.html"
    assert f"page: {page.relative_to(tmp_path)}" in done.stdout
    assert page.is_file()
    assert f"table: {page.with_name('table.md').relative_to(tmp_path)}" in done.stdout
    assert "target: accuracy 0." in done.stdout

    before = (tmp_path / "sweep/0/result.json").read_bytes()
    # The third was interrupted: it has no result.
    (tmp_path / "sweep/2/result.json").unlink()
    again = in_new_process(tmp_path, *arguments)
    assert again.returncode == 1
    assert again.stdout.count("completed before: skipped") == 1
    assert (tmp_path / "sweep/0/result.json").read_bytes() == before
    assert status(tmp_path) == {0: "completed", 1: "failed", 2: "completed"}


def test_J1_a_diverged_job_is_a_row(command, no_drawing, tmp_path):
    code, out, _ = command(*SWEEP, "optimizer.learning_rate=0.1,1e30,0.2")
    assert code == 1
    assert status(tmp_path) == {0: "completed", 1: "diverged", 2: "completed"}
    assert "2 of 3 jobs completed" in out


def test_J1_a_reference_that_leads_nowhere_fails_its_job_alone(command, tmp_path):
    switch = "strategy.switch_step=${nothing},1"
    code, out, _ = command(*SWEEP, "strategy=post_local_sgd", switch)
    assert code == 1
    assert status(tmp_path) == {0: "failed", 1: "completed"}
    assert "1 of 2 jobs completed" in out


def test_a_report_that_fails_is_no_success(command, monkeypatch):
    def build(*_):
        raise RuntimeError("no ink")

    monkeypatch.setattr(parsgd.report, "build", build)
    code, _, err = command(*SWEEP, "workers=1")
    assert code == 1
    assert "the report failed: RuntimeError: no ink" in err


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["hydra.sweep.dir=a_file/x"], "choose another folder with hydra.sweep.dir"),
        (["schedule=null,cosine"], "schedule takes the name of a choice"),
        (["schedule=null,cosine", "--dry-run"], "schedule takes the name of a choice"),
    ],
)
def test_a_wrong_sweep_is_refused_whole(command, tmp_path, arguments, expected):
    (tmp_path / "a_file").touch()
    code, _, err = command("train", "-m", "workers=1,2", *arguments)
    assert code == 2
    assert expected in err


def test_J12_a_folder_of_another_sweep_is_refused(command, no_drawing, tmp_path):
    assert command(*SWEEP, "workers=1,2")[0] == 0
    code, _, err = command(*SWEEP, "workers=2,1")
    assert code == 2
    assert "sweep holds another sweep: its job 0 is" in err
    # The same overrides with another meaning, as after an edit: run again.
    result = tmp_path / "sweep/0/result.json"
    changed = json.loads(result.read_text())
    changed["config"]["optimizer"]["learning_rate"] = 0.3
    result.write_text(json.dumps(changed))
    _, out, _ = command(*SWEEP, "workers=1,2", "--dry-run")
    listed = ["2 jobs, 1 to run", "#0 epochs=1 evaluations=1 workers=1"]
    listed += ["#1 epochs=1 evaluations=1 workers=2 (completed before)"]
    assert out.splitlines()[:3] == listed
    code, out, _ = command(*SWEEP, "workers=1,2")
    assert code == 0
    assert out.count("completed before: skipped") == 1
    assert json.loads(result.read_text())["config"]["optimizer"]["learning_rate"] == 0.1


@pytest.mark.parametrize(
    ("words", "job", "how"),
    [
        (("hydra.run.dir=run",), "run", "goes on with parsgd train resume=DIR"),
        (
            ("-m", "hydra.sweep.dir=all", "seed=0,1"),
            "all/0",
            "The same command with hydra.sweep.dir=all does what is missing",
        ),
    ],
)
def test_an_interrupt_says_how_to_go_on(tmp_path, words, job, how):
    arguments = ("train", "epochs=100000", *words)
    process = subprocess.Popen(
        [sys.executable, "-m", "parsgd.cli", *arguments],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    metrics = tmp_path / job / "metrics.jsonl"
    deadline = time.monotonic() + 60
    try:
        while not (metrics.is_file() and metrics.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:  # or it would train on beside all other tests
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in err and how in err, err
    assert "Traceback" not in err
    assert not (tmp_path / job / "result.json").exists()


@pytest.mark.parametrize(
    "wanted, expected",
    [
        ([None], 1),
        ([2, 5, None], 5),
        ([[1, 7]], 8),
        ([2, 2000, [0, 5000]], 2),  # their jobs say that these cannot be
        (["x", 2.5, True, []], 1),
        ([[True, 7]], 1),
    ],
)
def test_devices_suffice_for_the_largest_job(monkeypatch, wanted, expected):
    asked = []
    monkeypatch.setattr("parsgd.cli.launchers.want_cpu_devices", asked.append)
    # As under taskset, on a machine with more.
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3}, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    make_devices(wanted)
    assert asked == [expected]


def test_J10_two_launches_have_two_folders():
    folders = set()
    for _ in range(2):
        cluster.start(cluster.Settings())  # as each command does
        made = compose(return_hydra_config=True)
        folders |= {made.hydra.run.dir, made.hydra.sweep.dir}
    assert len(folders) == 4


def test_a_mistake_of_all_jobs_is_said_once_before_any_starts(command, tmp_path):
    code, out, err = command(*SWEEP, "samples=64", "workers=1,2")
    assert code == 2 and out == ""
    assert err.count("exactly one budget") == 1 and "(so in all 2 jobs)" in err
    assert "or set epochs=null or samples=null" in err
    assert not (tmp_path / "sweep").exists()


def test_a_mistake_of_some_jobs_is_theirs_alone(command, no_drawing, tmp_path):
    code, _, _ = command(*SWEEP, "samples=64,null")
    assert code == 1
    assert status(tmp_path) == {0: "failed", 1: "completed"}


def test_J2_devices_that_cannot_be_are_one_jobs_failure(command, no_drawing, tmp_path):
    code, out, _ = command(*SWEEP, "placement.devices=1,2000")
    assert code == 1 and "CPU devices are threads of this machine, 1024" in out
    assert status(tmp_path) == {0: "completed", 1: "failed"}


def test_J12_a_sweep_and_a_run_do_not_share_a_folder(command, no_drawing, tmp_path):
    assert command("train", "hydra.run.dir=sweep", *SHORT)[0] == 0
    before = sorted(tmp_path.rglob("*"))
    code, _, err = command(*SWEEP, "workers=1,2")
    assert code == 2
    assert "sweep is the folder of a single run, with a result.json of its own" in err
    assert sorted(tmp_path.rglob("*")) == before
    assert command("train", "-m", "hydra.sweep.dir=many", "workers=1,2", *SHORT)[0] == 0
    code, _, err = command("train", "hydra.run.dir=many", *SHORT)
    assert code == 2 and "many is the folder of a sweep" in err


def test_J12_two_sweeps_at_once_do_not_share_a_folder(tmp_path):
    words = ("epochs=1", "hydra.sweep.dir=sweep")
    started = functools.partial(
        subprocess.Popen, cwd=tmp_path, stderr=-1, stdout=-1, text=True
    )
    sweep = (sys.executable, "-m", "parsgd", "train", "-m", *words)
    first = started((*sweep, "seed=0,1"))
    swept = tmp_path / "sweep/multirun.yaml"
    deadline = time.monotonic() + 60
    while not swept.exists():
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.02)
    second = started((*sweep, "seed=2,3"))
    _, err = second.communicate(timeout=120)
    assert second.returncode == 2, err
    assert "another sweep is running in" in err or "holds another sweep" in err
    _, err = first.communicate(timeout=120)
    assert first.returncode == 0, err
    results = [tmp_path / f"sweep/{job}/result.json" for job in (0, 1)]
    assert [json.loads(r.read_text())["config"]["seed"] for r in results] == [0, 1]


def test_J12_a_refused_run_leaves_a_sweep_as_it_was(command, no_drawing, tmp_path):
    assert command(*SWEEP, "workers=1,2")[0] == 0
    code, _, err = command("train", "epochs=3", f"hydra.run.dir={tmp_path}/sweep/0")
    assert code == 2 and "holds the result of another run" in err
    code, out, err = command(*SWEEP, "workers=1,2")
    assert code == 0, err
    assert out.count("completed before: skipped") == 2
