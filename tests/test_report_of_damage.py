"""Reports over jobs that failed at their sizes, and over damaged files."""

import json

import pytest
from fake_jobs import fake_job, write_job

from parsgd import report, results


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
