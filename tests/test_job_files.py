"""The files of a job: written whole, read with care."""

import importlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parsgd import report, results
from parsgd.cli import earlier
from parsgd.errors import UserError

sys.path.insert(0, str(Path(__file__).parent))
fake_jobs = importlib.import_module("fake_jobs")
fake_job, fake_config = fake_jobs.fake_job, fake_jobs.fake_config
line = fake_jobs.line


def test_round_trip(tmp_path):
    fake_job(tmp_path / "a", seed=7, overrides=["workers=4"])
    (job,) = results.load(tmp_path)
    assert job.status == "completed" and job.config["seed"] == 7
    assert job.overrides == ("workers=4",) and len(job.metrics) == 11
    assert job.final == job.metrics[-1]
    assert json.loads((tmp_path / "a/result.json").read_text())["schema"] == 1
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "config.yaml",
        "metrics.jsonl",
        "result.json",
    ]


def test_non_finite_and_array_numbers(tmp_path):
    results.begin(tmp_path, {"lr": np.float32(0.5), "seed": 0})
    results.append(tmp_path, {"round": np.int64(3), "test_loss": math.nan})
    results.append(tmp_path, {"round": 4, "test_loss": np.array(-np.inf), "x": [1e400]})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert [json.loads(t) for t in text.splitlines()] == [
        {"round": 3, "test_loss": None},
        {"round": 4, "test_loss": None, "x": [None]},
    ]
    with pytest.raises(TypeError, match="function cannot be stored"):
        results.append(tmp_path, {"round": lambda: 0})


def test_H1_finish_is_atomic(tmp_path, monkeypatch):
    fake_job(tmp_path)
    before = (tmp_path / "result.json").read_text()

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(UserError, match="No space left"):
        results.finish(tmp_path, {"status": "failed"})
    assert (tmp_path / "result.json").read_text() == before
    assert not list(tmp_path.glob(".*tmp"))


def test_H2_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/job"):
        results.begin(tmp_path / "file" / "job", {})


def test_begin_clears_an_older_try(tmp_path):
    fake_job(tmp_path)
    results.begin(tmp_path, fake_config())
    (job,) = results.load(tmp_path)
    assert job.status == "interrupted" and job.metrics == ()
    assert "before it evaluated" in job.reason


def test_two_jobs_do_not_run_in_one_folder(tmp_path):
    refused = pytest.raises(UserError, match="another job is running")
    with results.held(tmp_path):
        results.begin(tmp_path, fake_config())
        results.append(tmp_path, line(0, 0.1))
        with refused, results.held(tmp_path):
            pass
        (job,) = results.load(tmp_path)
        assert job.status == "interrupted" and len(job.metrics) == 1
    with results.held(tmp_path):
        pass


def test_killed_job_keeps_good_lines_and_can_go_on(tmp_path):
    results.begin(tmp_path, fake_config())
    results.append(tmp_path, line(0, 0.1))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"round": 5, "test_acc')
    job = results.read_job(tmp_path)
    assert [x["round"] for x in job.metrics] == [0]
    assert job.status == "interrupted" and "round 0" in job.reason
    results.append(tmp_path, line(10, 0.5))
    assert [x["round"] for x in results.read_job(tmp_path).metrics] == [0, 10]


def test_broken_line_in_the_middle_is_named(tmp_path):
    results.begin(tmp_path, fake_config())
    (tmp_path / "metrics.jsonl").write_text('{"round": 0}\n{"rou\n{"round": 2}\n')
    with pytest.raises(UserError, match="line 2"):
        results.load(tmp_path)


SOUND = '{"schema": 1, "status": "completed"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 2, "status": "completed"}', "newer parsgd .schema 2.*upgrade"),
        ('{"accuracy": 1}', "not a parsgd result"),
        ("[1, 2]", "not a parsgd result"),
        ('{"schema": true}', "not a parsgd result"),
        ("{", "not JSON"),
        (f'{SOUND}, "overrides": 5}}', "'overrides' is 5, not a list"),
        (f'{SOUND}, "config": [1]}}', "'config' is .1., not an object"),
        (f'{SOUND}, "final": {{"test_accuracy": "0.9"}}}}', "'0.9', not a number"),
        (f'{SOUND}, "summary": {{"workers": []}}}}', "'workers' is .., not a size"),
        ('{"schema": 1, "status": "odd"}', "'odd', not one of"),
    ],
)
def test_foreign_result(tmp_path, text, message):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        results.load(tmp_path)
    assert str(tmp_path / "result.json") in str(caught.value)


def test_measurements_of_another_kind_are_named(tmp_path):
    results.begin(tmp_path, fake_config())
    (tmp_path / "metrics.jsonl").write_text('{"round": 0}\n{"test_accuracy": "0.9"}\n')
    with pytest.raises(UserError, match=r"line 2 .*'test_accuracy' is '0.9', not a n"):
        results.load(tmp_path)


def test_measurements_that_are_no_numbers_are_missing(tmp_path):
    fake_job(tmp_path, evaluations=3)
    for name in ("metrics.jsonl", "result.json"):
        text = (tmp_path / name).read_text()
        for word in ("NaN", "-Infinity", "1e999"):
            odd = re.sub(r'("test_accuracy": )[\d.]+', rf"\g<1>{word}", text)
            (tmp_path / name).write_text(odd)
            (job,) = results.load(tmp_path)
            lines = [job.final] if name == "result.json" else job.metrics
            assert [line["test_accuracy"] for line in lines] == [None] * len(lines)
    assert report.build(tmp_path).page.is_file()


def test_load_finds_each_job_once_in_natural_order(tmp_path):
    for name in ("10", "9", "deep/er/1"):
        fake_job(tmp_path / name, evaluations=1)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "metrics.jsonl").write_text("not ours\n")
    jobs = results.load([tmp_path, tmp_path / "9"])
    names = [str(job.folder.relative_to(tmp_path)) for job in jobs]
    assert names == ["9", "10", "deep/er/1"]


def test_load_stays_out_of_checkpoints_which_come_and_go(tmp_path, monkeypatch):
    fake_job(tmp_path / "checkpoints" / "0", status="interrupted")  # a sweep's name
    fake_job(tmp_path / "checkpoints" / "1")
    for job in "01":
        inside = tmp_path / "checkpoints" / job / "checkpoints"
        (inside / "380.orbax-checkpoint-tmp").mkdir(parents=True)
    scan = os.scandir

    def scandir(path="."):
        if os.fspath(path).endswith("tmp"):
            raise FileNotFoundError(2, "No such file or directory", path)
        assert Path(path).parent.name not in ("0", "1"), "it looks into checkpoints"
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [job.folder.name for job in results.load(tmp_path)] == ["0", "1"]


def test_load_says_what_is_missing(tmp_path):
    with pytest.raises(UserError, match="no folder"):
        results.load(tmp_path / "none")
    with pytest.raises(UserError, match="no jobs in"):
        results.load(tmp_path)


def test_overrides_of_an_interrupted_job_come_from_hydra(tmp_path):
    fake_job(tmp_path, status="interrupted")
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("- strategy=slow\n")
    frame = results.table(results.load(tmp_path))
    assert frame["strategy"].to_list() == ["slow"]


def test_I2_import_is_light():
    code = (
        "import sys, parsgd; before = set(sys.modules); import parsgd.results;"
        "heavy = {'jax', 'plotly', 'matplotlib', 'itables', 'IPython'};"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_environment_starts_no_backend():
    assert results.versions()["parsgd"] and results.versions()["jax"]
    machine = results.machine(devices=[1])
    assert machine["devices"] == ["1"] and machine["cores"] >= 1
    assert machine["memory_bytes"] > 0 and machine["cpu"]


def test_J1_a_skipped_job_has_the_score_that_it_had(tmp_path, monkeypatch):
    """Of a task without an accuracy too, where it is minus the loss."""
    records = [{"test_loss": 2.0}, {"test_loss": 0.5}, {"test_loss": float("nan")}]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"round": i, **r}) + "\n" for i, r in enumerate(records))
    )
    (tmp_path / "config.yaml").write_text("workers: 1\n")
    (tmp_path / "result.json").write_text(
        json.dumps({"schema": 1, "status": "diverged", "reason": "too fast"})
    )
    assert earlier.end_of(tmp_path) == ("too fast", -0.5)
    monkeypatch.setattr(earlier.cluster, "is_first", lambda: False)
    told = json.dumps(["slow", -0.25])
    monkeypatch.setattr(earlier.cluster, "agree", lambda name, text: text or told)
    assert earlier.end_of(tmp_path) == ("slow", -0.25)
