"""Settings that follow from others, and names that look like ours, split nothing."""

import json
import re

import polars as pl
from fake_jobs import fake_job

from parsgd import report, results
from parsgd.report.appendix import environment
from parsgd.report.page import render
from parsgd.report.study import scaling_lines, study


def table(folder):
    return results.table(results.load(folder))


def one(folder):
    (part,) = study(results.load(folder)).parts
    return part


def test_lengths_that_follow_from_the_workers_break_no_line_over_them(tmp_path):
    for i, workers in enumerate((1, 2, 4)):
        for name in ("local_sgd", "block_momentum"):
            schedule = {"_target_": "optax.cosine", "decay_steps": 880 // workers}
            folder = tmp_path / f"{name}{i}"
            fake_job(folder, strategy=name, workers=workers, schedule=schedule)
    lines = scaling_lines(one(tmp_path).entries)
    assert {name: len(line) for name, line in lines.items()} == {
        "local_sgd": 3,
        "block_momentum": 3,
    }
    page = render(study(results.load(tmp_path)))
    (found,) = re.findall(r'"facets": ?({[^{}]*}), ?"colors"', page)
    assert [*json.loads(found)] == ["strategy", "workers"]


def test_rates_of_equal_workers_are_lines_of_their_own(tmp_path):
    for i, (workers, rate) in enumerate([(1, 0.1), (1, 0.2), (2, 0.1), (2, 0.2)]):
        words = [f"rate={rate}"]
        fake_job(tmp_path / str(i), workers=workers, rate=rate, overrides=words)
    lines = scaling_lines(one(tmp_path).entries)
    assert [len(line) for line in lines.values()] == [2, 2]


def test_the_batch_that_a_call_is_given_may_be_either(tmp_path):
    for seed, (own, whole) in enumerate([(32, None), (None, 128)]):
        scaling = {"_target_": "parsgd.scaling.none", "reference_batch": own}
        eta = {"_target_": "parsgd.x", "worker_batch": own, "global_batch": whole}
        folder = tmp_path / str(seed)
        fake_job(folder, seed=seed, overrides=[], scaling=scaling, eta=eta)
    assert table(tmp_path)["n"].to_list() == [2]


def test_other_references_of_a_rule_are_told_apart(tmp_path):
    for seed, batch in enumerate((32, 64)):
        scaling = {"_target_": "parsgd.scaling.linear", "reference_batch": batch}
        fake_job(tmp_path / str(seed), seed=seed, overrides=[], scaling=scaling)
    assert table(tmp_path)["n"].to_list() == [1, 1]


def test_a_job_that_never_knew_its_length_is_of_the_row_of_the_others(tmp_path):
    for seed, steps in enumerate((880, 880, "${steps:1.0}")):
        schedule = {"_target_": "optax.cosine", "decay_steps": steps}
        ended = {} if seed < 2 else {"status": "failed", "reason": "killed"}
        folder = tmp_path / str(seed)
        fake_job(folder, seed=seed, overrides=[], schedule=schedule, **ended)
    (row,) = table(tmp_path).to_dicts()
    assert row["status"] == "2 completed, 1 failed"


def test_a_choice_of_a_model_is_one_column(tmp_path):
    for name, features in (("mlp_128", [128]), ("cnn", [16, 32])):
        model = {"_target_": f"parsgd.models.{name}", "features": features}
        task = {"_target_": "parsgd.digits", "model": model}
        fake_job(tmp_path / name, task=task, overrides=[f"task/model={name}"])
    frame = table(tmp_path)
    assert "task/model" in frame.columns
    assert not [name for name in frame.columns if name.startswith("task.")]


def test_settings_may_be_called_like_costs(tmp_path):
    for seed, value in enumerate((3, 5)):
        own = {"epochs_to_target": value, "Throughput (samples/s)": value}
        fake_job(tmp_path / str(seed), overrides=[], **own)
    paths = report.build(tmp_path)
    assert "epochs_to_target" in paths.markdown.read_text()
    assert pl.read_csv(paths.csv).height == 2


def test_files_that_differ_in_their_ending_are_tasks_of_their_own(tmp_path):
    tasks = ["corpus.en", "corpus.de", "text.txt", None]
    for i, name in enumerate(tasks):
        task = {"_target_": "parsgd.tasks.text"}
        task |= {} if name is None else {"path": f"data/{name}"}
        fake_job(tmp_path / str(i), task=task, overrides=["task=text"])
    frame = table(tmp_path)
    assert sorted(frame["task"]) == ["corpus.de", "corpus.en", "text", "text.txt"]


def test_numbers_of_devices_are_no_other_machine(tmp_path, monkeypatch):
    for count in (1, 2):
        devices = [f"TFRT_CPU_{i}" for i in range(count)]
        own = {"cpu": "one", "cores": 2, "devices": devices}
        monkeypatch.setattr(results, "machine", lambda own=own, **_: own)
        fake_job(tmp_path / str(count), workers=count)
    assert "different machines" not in environment(study(results.load(tmp_path)))


def test_a_report_removes_only_figures_of_its_own(tmp_path):
    fake_job(tmp_path / "run")
    first = report.build(tmp_path / "run", tmp_path / "out")
    own = tmp_path / "out/figures/throughput-a100.png"
    own.write_bytes(b"\x89PNG of the user's")
    for path in first.figures:
        path.rename(path.with_name(f"{path.stem}-old.png"))
    report.build(tmp_path / "run", tmp_path / "out")
    assert own.is_file() and not [*own.parent.glob("*-old.png")]


def test_folders_with_odd_digits_are_sorted(tmp_path):
    fake_job(tmp_path / "10²")
    fake_job(tmp_path / "2", workers=2)
    assert len(results.load(tmp_path)) == 2
