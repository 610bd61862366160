"""Reports over jobs that failed or diverged, measured little, or left damage."""

import json
from html import escape

import pytest
from fake_jobs import fake_job, line, write_job

from parsgd import report, results
from parsgd.report.answer import sentences
from parsgd.report.appendix import environment
from parsgd.report.plots import plots
from parsgd.report.study import study
from parsgd.results import reading
from parsgd.results.export import texts


@pytest.mark.parametrize("value", ["${nothing}", "abc", 2.0, [1, 2], True, 2**63])
def test_what_is_no_size_fails_its_job_and_not_the_report(tmp_path, value):
    sizes = ("workers", "local_steps", "worker_batch", "global_batch")
    fake_job(tmp_path / "0", overrides=[])
    fake_job(tmp_path / "1", seed=1, workers=2, overrides=[])
    for size in sizes:
        fake_job(tmp_path / size, status="failed", overrides=[], evaluations=0)
        edit(tmp_path / size, config={size: value})
    report.build(tmp_path)
    for size in sizes:
        (group,) = results.group(results.load(tmp_path / size))
        assert group.setting(size) is None
    frame = results.table(results.load(tmp_path))
    names = set(frame["configuration"])
    assert len(names) == len(frame) and f"workers={value}," in " ".join(names)


def edit(folder, **parts):
    """Change keys of parts of a job's result."""
    path = folder / "result.json"
    record = json.loads(path.read_text())
    for name, changed in parts.items():
        record[name] = (record[name] or {}) | changed
    path.write_text(json.dumps(record))


def test_failed_jobs_of_two_batches_have_two_names(tmp_path):
    for batch in (16, 32):
        write_job(tmp_path / str(batch), [], status="failed", worker_batch=batch)
    frame = results.table(results.load(tmp_path))
    assert sorted(frame["configuration"]) == [
        "local_sgd, batch=128",
        "local_sgd, batch=64",
    ]
    assert sorted(frame["global_batch"]) == [64, 128]
    assert sorted(frame["worker_batch"]) == [16, 32]


def answer(folder, target):
    (part,) = study(results.load(folder), target).parts
    return part, " ".join(sentences(part))


def test_a_task_without_accuracy_has_no_target_even_if_asked(tmp_path):
    fake_job(tmp_path / "0", regression=True)
    fake_job(tmp_path / "1", regression=True, workers=2)
    part, text = answer(tmp_path, 0.9)
    assert part.target == (None, "no test accuracy was measured", "")
    assert "No test accuracy was measured, so there is no target" in text
    assert "Lowest final test loss" in text
    assert not plots(part)["samples"][1].layout.shapes


def test_a_row_with_a_run_that_diverged_is_no_winner(tmp_path):
    curve = [line(0, 0.1), line(5, 0.9)]
    write_job(tmp_path / "0", curve, workers=2, seed=0)
    write_job(tmp_path / "1", curve, workers=2, seed=1, status="diverged")
    for seed in (0, 1):
        slow = [line(0, 0.1), line(9, 0.9)]
        write_job(tmp_path / f"4-{seed}", slow, workers=4, seed=seed)
    frame = results.table(results.load(tmp_path), target=0.8)
    assert frame["workers"].to_list() == [4, 2]
    assert frame["reached"].to_list() == ["2 of 2", "2 of 2"]
    _, text = answer(tmp_path, 0.8)
    assert "Soonest: local_sgd, workers=4, 0.9000 ± 0 s" in text
    assert "1 of 2 configurations reached it, but with a run that diverged." in text
    _, text = answer([tmp_path / "0", tmp_path / "1"], 0.8)
    assert "No configuration reached it in every run without one that diverged" in text


def test_a_run_that_was_never_evaluated_missed_nothing(tmp_path):
    fake_job(tmp_path / "0")
    fake_job(tmp_path / "1", seed=1)
    (tmp_path / "1" / "metrics.jsonl").write_text("")
    (row,) = results.table(results.load(tmp_path), target=0.9).to_dicts()
    assert row["reached"] == "1 of 1" and row["n"] == 2


def test_a_job_that_ends_while_it_is_read_is_read_whole(tmp_path, monkeypatch):
    fake_job(tmp_path)
    whole = results.read_job(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:3]))
    read = reading._read_result

    def ends(path):
        found = read(path)
        (tmp_path / "metrics.jsonl").write_text("".join(lines))
        return found

    monkeypatch.setattr(reading, "_read_result", ends)
    assert results.read_job(tmp_path).metrics == whole.metrics


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "config.yaml"])
def test_a_file_that_goes_while_it_is_read_is_none(tmp_path, monkeypatch, name):
    fake_job(tmp_path)
    monkeypatch.setattr(reading.Path, "is_file", lambda path: True)
    (tmp_path / name).unlink()
    job = results.read_job(tmp_path)
    assert job.status == ("interrupted" if name == "result.json" else "completed")


@pytest.mark.parametrize("round", [None, "none"])
def test_a_line_without_its_round_is_in_no_curve(tmp_path, round):
    lines = [line(0, 0.1), line(5, 0.7), line(9, 0.9)]
    lines[1]["round"] = round
    if round:
        del lines[1]["round"]
    write_job(tmp_path, lines)
    (part,) = study(results.load(tmp_path), 0.8).parts
    assert part.entries[0].curve.x["round"] == [0, 9]


@pytest.mark.parametrize("devices", [5, {"a": 1}, "cpu:0"])
def test_a_machine_is_shown_as_it_was_told(tmp_path, devices):
    fake_job(tmp_path)
    edit(tmp_path, machine={"devices": devices, "memory_bytes": "64 GB"})
    text = environment(study(results.load(tmp_path)))
    assert escape(str(devices)) in text and "64 GB memory" in text


def test_a_number_that_no_column_holds_is_kept_as_text(tmp_path):
    for value in (3, 2**64, -(2**70)):
        fake_job(tmp_path / str(value), overrides=[], salt=value)
    frame = results.table(results.load(tmp_path))
    assert set(frame["salt"]) == {"3", str(2**64), str(-(2**70))}


def test_settings_are_shown_exactly(tmp_path):
    for value in (0.99, 0.999, 0.9995, 0.9999, 1e-30):
        fake_job(tmp_path / str(value), overrides=[f"b2={value}"], b2=value)
    frame = results.table(results.load(tmp_path))
    shown = ["0.99", "0.999", "0.9995", "0.9999", "1e-30"]
    assert sorted(texts(frame, "b2")) == shown
    assert all(f"| {value} |" in results.markdown(frame) for value in shown)


def test_a_hover_tells_a_small_throughput(tmp_path):
    for workers, speed in ((1, 0.42), (2, 1234.5)):
        write_job(
            tmp_path / str(workers),
            [line(0, 0.1), line(9, 0.9)],
            workers=workers,
            summary={"samples_per_second": speed},
        )
    (part,) = study(results.load(tmp_path), 0.8).parts
    (trace,) = plots(part)["throughput"][1].data
    assert list(trace.customdata) == ["0.42", "1,234"]
