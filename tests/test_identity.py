"""The same computation is one configuration, however it was asked for."""

import json

import pytest
from fake_jobs import fake_job, line, write_job

from parsgd import results


def table(folder):
    return results.table(results.load(folder))


def job(folder, seed=0, summary=None, **more):
    """A job that ran, with more in its summary."""
    fake_job(folder, seed=seed, overrides=more.pop("overrides", []), **more)
    path = folder / "result.json"
    record = json.loads(path.read_text())
    record["summary"] |= summary or {}
    path.write_text(json.dumps(record))


def failed(folder, seed=0, **more):
    more = {"overrides": [], **more}
    fake_job(folder, seed=seed, status="failed", reason="no room", **more)


def test_either_batch_may_be_asked_for(tmp_path):
    job(tmp_path / "0", seed=0, worker_batch=32, global_batch=None)
    lines = [line(0, 0.1), line(9, 0.9)]
    sizes = {"workers": 4, "worker_batch": 32, "global_batch": 128, "local_steps": 4}
    asked = {"worker_batch": None, "global_batch": 128}
    write_job(tmp_path / "1", lines, seed=1, summary=sizes, **asked)
    write_job(tmp_path / "2", [], seed=2, status="failed", **asked)
    (row,) = table(tmp_path).to_dicts()
    assert row["n"] == 2 and row["status"] == "2 completed, 1 failed"
    assert (row["worker_batch"], row["global_batch"]) == (32, 128)


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_seed_that_failed_is_of_the_row_of_as_many_processes(tmp_path, status):
    place = {"placement": {"kind": "shard_map", "devices": 2, "processes": 2}}
    fake_job(tmp_path / "0", seed=0, status=status, overrides=[], evaluations=0)
    for seed in (1, 2):
        job(tmp_path / str(seed), seed, place)
    (row,) = table(tmp_path).to_dicts()
    assert row["n"] == 2 and row["processes"] == 2 and status in row["status"]


def test_whole_numbers_are_the_same_with_a_point(tmp_path):
    for seed, value in enumerate((1, 1.0)):
        own = {"eta": value, "of": [value, 0.5]}
        fake_job(tmp_path / str(seed), seed=seed, overrides=[f"eta={value}"], **own)
    frame = table(tmp_path)
    assert frame["n"].to_list() == [2] and "eta" not in frame.columns
    fake_job(tmp_path / "2", workers=2, eta=1.0, of=[1, 0.5], overrides=["eta=1.0"])
    frame = table(tmp_path)
    assert sorted(frame["n"]) == [1, 2] and "eta" not in frame.columns
    fake_job(tmp_path / "3", workers=2, eta=1.5, overrides=["eta=1.5"])
    names = set(table(tmp_path)["configuration"])
    assert names == {
        f"local_sgd, {sizes}" for sizes in ("workers=4, eta=1", "workers=2, eta=1")
    } | {"local_sgd, workers=2, eta=1.5"}


def test_a_seed_that_follows_and_one_that_is_fixed_are_two_rows(tmp_path):
    for seed in (0, 1, 2):
        for name, nested in (("follows", seed), ("fixed", 0)):
            task = {"_target_": "parsgd.synthetic", "seed": nested}
            job(tmp_path / name / str(seed), seed, task=task)
    frame = table(tmp_path)
    assert frame["n"].to_list() == [3, 3]
    assert set(frame["task.seed"]) == {None, 0}
    assert frame["configuration"].n_unique() == 2
    # A run that lies alone, and says nothing of which of the two it is of.
    task = {"_target_": "parsgd.synthetic", "seed": 3}
    job(tmp_path / "alone" / "3", 3, task=task)
    assert sorted(table(tmp_path)["n"]) == [3, 4]


def test_one_file_of_data_is_one_task_however_its_path_is_spelled(tmp_path):
    paths = ("data.csv", "./data.csv", "/home/me/data.csv")
    for seed, path in enumerate(paths):
        task = {"_target_": "parsgd.csv", "path": path}
        words = ["task=csv", f"task.path={path}"]
        summary = {"data_checksum": "0a1b"}
        job(tmp_path / str(seed), seed, summary, task=task, overrides=words)
    failed(tmp_path / "3", 3, task=task, overrides=words)  # has no checksum
    (row,) = table(tmp_path).to_dicts()
    assert row["n"] == 3 and row["task"] == "data"
    assert row["status"] == "3 completed, 1 failed" and "task.path" not in row
    job(tmp_path / "4", 4, {"data_checksum": "0c"}, task=task | {"path": "a/data.csv"})
    assert sorted(table(tmp_path)["task"]) == ["a/data", "data"]


def test_a_copy_that_was_edited_is_not_taken_for_its_original(tmp_path):
    for number, (path, data) in enumerate(
        (("old", "c0"), ("new", "c0"), ("new", "c1"))
    ):
        task = {"_target_": "parsgd.csv", "path": f"{path}.csv"}
        words = ["task=csv", f"task.path={path}.csv"]
        summary = {"data_checksum": data}
        job(tmp_path / str(number), number, summary, task=task, overrides=words)
    frame = table(tmp_path)
    assert dict(zip(frame["task"], frame["n"], strict=True)) == {"old": 2, "new": 1}


def test_runs_resumed_at_other_steps_are_no_repeats(tmp_path):
    for number, step in enumerate((120, 240, 120)):
        before = {"workers": 4, "earlier_workers": [[8, step]]}
        job(tmp_path / str(number), number // 2, before)
    frame = table(tmp_path)
    assert dict(zip(frame["resumed"], frame["n"], strict=True)) == {
        "8 -> 4 workers at step 120": 2,
        "8 -> 4 workers at step 240": 1,
    }


def test_a_run_resumed_elsewhere_is_told_apart(tmp_path):
    place = {"kind": "vmap", "devices": 1, "processes": 2, "cpu": "EPYC", "cores": 4}
    job(tmp_path / "0", 0, {"earlier_placements": [[place, 120]]})
    job(tmp_path / "1", 1, {"earlier_placements": []})
    frame = table(tmp_path)
    assert frame["n"].to_list() == [1, 1]
    told = ("placement=vmap", "1 device", "2 processes", "cpu=EPYC", "4 cores")
    assert set(frame["resumed"]) == {
        None,
        f"{' and '.join(told)} until step 120",
    }


def test_a_warm_up_of_no_rule_tells_nothing_apart(tmp_path):
    for rule in ("none", "linear"):
        for seed, epochs in enumerate((0.0, 5.0)):
            call = {"_target_": f"parsgd.scaling.{rule}", "warmup_epochs": epochs}
            fake_job(tmp_path / f"{rule}{seed}", seed=seed, scaling=call, overrides=[])
    assert sorted(table(tmp_path)["n"]) == [1, 1, 2]
