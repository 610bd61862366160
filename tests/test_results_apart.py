"""What tells runs apart in a report, and what in a result is refused."""

import importlib
import json
import math

import numpy as np
import pytest

from parsgd import results
from parsgd.errors import UserError
from parsgd.report.terminal import naming
from parsgd.results.target import reached

fake_job = importlib.import_module("fake_jobs").fake_job


def seeded(folder, seed, nested, **more):
    data = {"_target_": "parsgd.synthetic", "seed": nested}
    fake_job(folder, seed=seed, task=data, overrides=[], **more)


def told_apart(folder):
    table = results.table(results.load(folder))
    columns = [name for name in table.columns if name.endswith("seed")]
    return sorted(table["n"].to_list()), columns


def test_a_fixed_seed_of_the_data_is_no_repeat_of_the_runs_own(tmp_path):
    for seed in (0, 1, 2):
        seeded(tmp_path / str(seed), seed, 0)
    assert told_apart(tmp_path) == ([3], [])


def test_a_seed_that_follows_the_runs_own_tells_nothing_apart(tmp_path):
    for seed in (0, 1, 2):
        seeded(tmp_path / str(seed), seed, seed)
    assert told_apart(tmp_path) == ([3], [])


def test_seeds_that_cross_are_two_configurations(tmp_path):
    for seed in (0, 1):
        for nested in (0, 1):
            seeded(tmp_path / f"{seed}-{nested}", seed, nested)
    assert told_apart(tmp_path) == ([2, 2], ["task.seed"])


def test_a_key_with_dots_is_found(tmp_path):
    for rate in (0.1, 0.5):
        fake_job(tmp_path / str(rate), overrides=[], **{"optimizer.lr": rate})
    table = results.table(results.load(tmp_path))
    assert sorted(table["optimizer.lr"].to_list()) == [0.1, 0.5]


@pytest.mark.parametrize("key", ["Workers", "accuracy", "Strategy"])
def test_a_key_like_a_column_gets_one_of_its_own(tmp_path, key):
    for value in (1, 2):
        fake_job(tmp_path / str(value), overrides=[], **{key: value})
    table = results.table(results.load(tmp_path))
    assert sorted(table[f"{key} (varied)"].to_list()) == [1, 2]
    assert f"{key} (varied)" in results.markdown(table)


def test_numbers_without_end_tell_configurations_apart(tmp_path):
    values = [math.inf, -math.inf, math.nan, None, np.float32(1)]
    for i, value in enumerate(values):
        fake_job(tmp_path / str(i), overrides=[], clip={"at": [value]})
    assert len(results.table(results.load(tmp_path))) == len(values)


def test_an_unfinished_run_counts_as_the_latest(tmp_path):
    fake_job(tmp_path / "old", status="failed", reason="no room")
    fake_job(tmp_path / "new", status="interrupted")
    old = tmp_path / "old" / "result.json"
    record = json.loads(old.read_text()) | {"started": "2020-01-01T00:00:00+09:00"}
    old.write_text(json.dumps(record))
    assert results.table(results.load(tmp_path))["status"].to_list() == ["interrupted"]


@pytest.mark.parametrize("size", [-1, 0.5, 10**25, True])
def test_a_size_that_is_none_is_told_by_its_file(tmp_path, size):
    fake_job(tmp_path / "a")
    path = tmp_path / "a" / "result.json"
    record = json.loads(path.read_text())
    record["summary"]["workers"] = size
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match="not a size"):
        results.load(tmp_path)


def test_a_loss_is_shown_where_one_of_several_tasks_has_nothing_else(tmp_path):
    fake_job(tmp_path / "a")
    task = {"_target_": "parsgd.regression"}
    fake_job(tmp_path / "b", task=task, regression=True)
    table = results.table(results.load(tmp_path))
    assert "Test loss" in results.markdown(table)
    assert "Test loss" not in results.markdown(table.filter(table["task"] == "digits"))


def test_an_untrained_model_sets_and_reaches_no_target(tmp_path):
    lines = [0.21, 0.10, 0.11]
    fake_job(tmp_path / "0", evaluations=3)
    path = tmp_path / "0" / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record, accuracy in zip(records, lines, strict=True):
        record["test_accuracy"] = accuracy
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    table = results.table(results.load(tmp_path))
    assert table["target"].to_list() == [None] and table["reached"].to_list() == [None]


def network(folder, seed, parameters, **model):
    """A job with a network of this size, and of it what is in the config."""
    fake_job(folder, seed=seed)
    record = json.loads((folder / "result.json").read_text())
    record["summary"]["parameters"] = parameters
    record["config"]["task"]["model"] |= model
    (folder / "result.json").write_text(json.dumps(record))


def test_networks_of_other_sizes_are_no_repeats(tmp_path):
    for seed, parameters in enumerate((259, 1027)):
        network(tmp_path / str(seed), seed, parameters)
    table = results.table(results.load(tmp_path))
    assert table["n"].to_list() == [1, 1]
    assert sorted(table["parameters"].to_list()) == [259, 1027]


def test_the_size_of_a_network_is_not_told_where_its_name_is(tmp_path):
    for width in (16, 64):
        for seed in (0, 1):
            network(tmp_path / f"{width}-{seed}", seed, 10 * width, width=width)
    table = results.table(results.load(tmp_path))
    assert table["n"].to_list() == [2, 2] and "parameters" not in table.columns


def test_data_files_are_tasks_of_their_own(tmp_path):
    for name, top in (("easy", 0.98), ("hard", 0.6)):
        task = {"_target_": "parsgd.npz", "path": f"data/{name}.npz"}
        words = ["task=npz", f"task.path=data/{name}.npz"]
        fake_job(tmp_path / name, task=task, overrides=words, top=top)
    table = results.table(results.load(tmp_path))
    assert table["task"].to_list() == ["easy", "hard"]
    easy, hard = table["target"].to_list()
    assert easy > 0.9 > 0.7 > hard and set(table["reached"]) == {"1 of 1"}
    assert "task.path" not in table.columns


def test_data_files_of_one_name_are_told_by_their_folders(tmp_path):
    for name, top in (("a/easy", 0.98), ("b/easy", 0.6), ("b/hard", 0.6)):
        task = {"_target_": "parsgd.npz", "path": f"data/{name}.npz"}
        fake_job(tmp_path / name, task=task, overrides=["task=npz"], top=top)
    table = results.table(results.load(tmp_path))
    assert sorted(table["task"]) == ["a/easy", "b/easy", "hard"]
    assert set(table["reached"]) == {"1 of 1"}


def test_a_failed_job_is_of_its_configuration_where_networks_differ(tmp_path):
    for seed, parameters in enumerate((259, 1027)):
        network(tmp_path / str(seed), seed, parameters)
    fake_job(tmp_path / "8", workers=8, seed=0)
    fake_job(tmp_path / "9", workers=8, seed=1, status="failed", reason="no room")
    table = results.table(results.load(tmp_path))
    rows = dict(zip(table["workers"], table["status"], strict=True))
    assert rows[8] == "1 completed, 1 failed"


def test_a_setting_called_parameters_is_kept(tmp_path):
    for value in ("a", "b"):
        fake_job(tmp_path / value, overrides=[], parameters=value)
    assert sorted(results.table(results.load(tmp_path))["parameters"]) == ["a", "b"]


def test_costs_to_the_target_have_errors(tmp_path):
    for seed in range(3):
        fake_job(tmp_path / str(seed), seed=seed, speed=1 + seed / 2)
    (row,) = results.table(results.load(tmp_path), target=0.9).iter_rows(named=True)
    for cost, key in (("samples", "samples"), ("rounds", "round"), ("bytes", "bytes")):
        hits = [reached(job, 0.9)[key] for job in results.load(tmp_path)]
        wanted = np.std(hits, ddof=1) / math.sqrt(3)
        assert row[f"{cost}_to_target_sem"] == pytest.approx(wanted) != 0
    assert row["spread"] == pytest.approx(0.01)


def test_a_value_that_was_never_known_is_left_out(tmp_path):
    for i, steps in enumerate((110, "${steps:1.0}")):
        task = {"_target_": "parsgd.digits", "decay_steps": steps}
        fake_job(tmp_path / str(i), workers=i + 1, task=task)
    assert "$" not in results.markdown(results.table(results.load(tmp_path)))


def test_what_a_column_says_anyway_has_none_of_its_own(tmp_path):
    for rate in (0.1, 0.5):
        network(tmp_path / str(rate), 0, 10)
        file = tmp_path / str(rate) / "result.json"
        record = json.loads(file.read_text())
        record["config"]["learning_rate"] = record["summary"]["learning_rate"] = rate
        file.write_text(json.dumps(record))
    table = results.table(results.load(tmp_path))
    assert sorted(table["learning_rate"].to_list()) == [0.1, 0.5]
    assert "learning_rate (varied)" not in table.columns
    assert "learning_rate" in naming(table)
