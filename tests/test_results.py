"""Grouping by seed, the table's numbers, and its exports."""

import json
import math

import numpy as np
import polars as pl
import pytest
from fake_jobs import fake_job, line, write_job

from parsgd import results
from parsgd.errors import UserError
from parsgd.results.export import markdown, no_spread, texts


def test_seeds_are_grouped_with_mean_and_sem(tmp_path):
    for seed, accuracy in enumerate([0.90, 0.92, 0.97]):
        write_job(tmp_path / str(seed), [line(0, 0.1), line(9, accuracy)], seed=seed)
    (row,) = results.table(results.load(tmp_path)).to_dicts()
    assert row["n"] == 3
    assert row["accuracy"] == pytest.approx(0.93)
    # numpy's ddof=1 is the independent formula
    sem = np.std([0.90, 0.92, 0.97], ddof=1) / np.sqrt(3)
    assert row["accuracy_sem"] == pytest.approx(sem)


def test_bytes_to_the_target_have_their_error(tmp_path):
    for seed, sent in enumerate([80_000, 84_000]):
        last = line(9, 0.97) | {"bytes": sent}
        write_job(tmp_path / str(seed), [line(0, 0.1), last], seed=seed)
    frame = results.table(results.load(tmp_path), target=0.9)
    assert texts(frame, "bytes_to_target") == ["82 kB ± 2 kB"]
    assert "| 82 kB ± 2 kB |" in markdown(frame)
    same = frame.with_columns(bytes_to_target_sem=pl.lit(0.0))
    assert texts(same, "bytes_to_target") == ["82 kB ± 0"]
    assert no_spread(same.with_columns(seconds_to_target_sem=pl.lit(0.1)))


def test_single_seed_has_no_standard_error(tmp_path):
    fake_job(tmp_path)
    (row,) = results.table(results.load(tmp_path)).to_dicts()
    assert row["n"] == 1 and row["accuracy_sem"] is None


def test_a_test_loss_is_the_mean_of_all_its_runs_or_none(tmp_path):
    def lost(folder, losses, workers):
        for seed, loss in enumerate(losses):
            lines = [line(0, None), line(9, None, test_loss=loss)]
            write_job(folder / str(seed), lines, seed=seed, workers=workers)

    lost(tmp_path / "a", (0.2, 0.4), 2)
    lost(tmp_path / "b", (0.1, None), 4)  # not finite
    frame = results.table(results.load(tmp_path))
    row, other = frame.to_dicts()
    assert row["test_loss"] == pytest.approx(0.3) and row["n"] == other["n"] == 2
    assert row["test_loss_sem"] == pytest.approx(0.1)
    assert other["test_loss"] is None and other["test_loss_sem"] is None
    assert texts(frame, "test_loss") == ["0.3 ± 0.1", "-"]
    assert not no_spread(frame)
    lost(tmp_path / "b", (0.5, 0.5), 4)
    assert no_spread(results.table(results.load(tmp_path)))


def test_to_target_is_the_first_evaluation_without_interpolation(tmp_path):
    curve = [line(0, 0.1), line(10, 0.5), line(20, 0.95), line(30, 0.80)]
    write_job(tmp_path, curve)
    (row,) = results.table(results.load(tmp_path), target=0.7).to_dicts()
    assert row["rounds_to_target"] == 20 and row["samples_to_target"] == 2000
    assert row["bytes_to_target"] == 20_000 and row["seconds_to_target"] == 2.0
    assert row["reached"] == "1 of 1"


def test_seed_that_misses_the_target_is_told_and_diverged_counts(tmp_path):
    write_job(tmp_path / "0", [line(0, 0.1), line(10, 0.9)], seed=0)
    write_job(tmp_path / "1", [line(0, 0.1), line(10, 0.6)], seed=1)
    write_job(tmp_path / "2", [line(0, 0.1)], seed=2, status="diverged")
    write_job(tmp_path / "3", [], seed=3, status="failed")
    (row,) = results.table(results.load(tmp_path), target=0.8).to_dicts()
    assert row["reached"] == "1 of 3" and row["rounds_to_target"] == 10
    assert row["status"] == "2 completed, 1 diverged, 1 failed" and row["n"] == 2
    (row,) = results.table(results.load(tmp_path), target=0.99).to_dicts()
    assert row["reached"] == "0 of 3" and row["seconds_to_target"] is None


def test_default_target(tmp_path):
    write_job(tmp_path / "0", [line(0, 0.1), line(9, 0.5), line(10, 0.4)], workers=1)
    write_job(tmp_path / "1", [line(0, 0.1)], workers=2)
    groups = results.group(results.load(tmp_path))
    (target,) = results.targets(groups).values()
    assert target.value == 0.49 and "98% of the best" in target.origin
    for i in (0, 1):
        write_job(tmp_path / f"{i}", [line(0, 0.1)], workers=i + 1, target_accuracy=0.8)
    (target,) = results.targets(results.group(results.load(tmp_path))).values()
    assert target.value == 0.8 and "target_accuracy" in target.origin


@pytest.mark.parametrize("target", [0, -1, 97, math.nan])
def test_impossible_target(tmp_path, target):
    fake_job(tmp_path)
    with pytest.raises(UserError, match="not an accuracy"):
        results.table(results.load(tmp_path), target=target)


def test_rows_come_soonest_first_and_partial_reach_later(tmp_path):
    write_job(tmp_path / "0", [line(0, 0.1), line(30, 0.9)], workers=1)
    write_job(tmp_path / "1", [line(0, 0.1), line(10, 0.9)], workers=2)
    write_job(tmp_path / "2", [line(0, 0.1), line(5, 0.9)], workers=4)
    write_job(tmp_path / "3", [line(0, 0.1), line(5, 0.2)], workers=4, seed=1)
    frame = results.table(results.load(tmp_path), target=0.8)
    assert frame["workers"].to_list() == [2, 1, 4]


@pytest.fixture
def three(tmp_path):
    """Workers 1, 2, 4: the soonest, the cheapest in bytes, the most accurate."""
    for workers, seconds, sent, last in ((1, 3, 9, 0.85), (2, 4, 7, 0.9), (4, 5, 8, 1)):
        end = line(9, last, seconds=seconds, bytes=sent, samples=10 - sent)
        write_job(tmp_path / str(workers), [line(0, 0.1), end], workers=workers)
    write_job(tmp_path / "8", [line(0, 0.1), line(9, 0.2, bytes=1)], workers=8)
    return results.load(tmp_path)


@pytest.mark.parametrize(
    ("sort", "workers"),
    [
        ("seconds", [1, 2, 4, 8]),
        ("bytes", [2, 4, 1, 8]),
        ("samples", [1, 4, 2, 8]),
        ("rounds", [4, 2, 1, 8]),  # equal: by accuracy
        ("accuracy", [4, 2, 1, 8]),
    ],
)
def test_rows_are_sorted_by_any_cost_and_misses_stay_last(three, sort, workers):
    frame = results.table(three, target=0.8, sort=sort)
    assert frame["workers"].to_list() == workers


def test_an_unknown_sort_names_the_known_ones(three):
    known = "sort=time: rows are sorted by seconds, samples, rounds, bytes, accuracy"
    with pytest.raises(UserError, match=known):
        results.table(three, sort="time")


def test_dense_over_sent(tmp_path):
    sent = {"bytes": 100, "bytes_dense": 400}
    write_job(tmp_path / "0", [line(0, 0.1)], summary=sent)
    none = {"bytes": 0, "bytes_dense": 0}
    write_job(tmp_path / "1", [line(0, 0.1)], workers=1, summary=none)
    frame = results.table(results.load(tmp_path))
    assert dict(zip(frame["workers"], frame["dense_over_sent"], strict=True)) == {
        4: 4.0,
        1: None,
    }


def test_failed_and_empty_jobs_are_rows(tmp_path):
    fake_job(tmp_path / "0", status="failed", reason="bad | batch", evaluations=0)
    fake_job(tmp_path / "1", workers=2, evaluations=0)
    fake_job(tmp_path / "2", workers=3, regression=True)
    frame = results.table(results.load(tmp_path))
    assert frame.height == 3 and frame["accuracy"].null_count() == 3
    assert "bad | batch" in set(frame["reason"])
    assert "bad \\| batch" in results.markdown(frame)
    assert "|  |" not in results.markdown(frame)


def test_huge_numbers_are_short(tmp_path):
    for i, rate in enumerate([0.1, 1e30]):
        asked = [f"optimizer.learning_rate={rate}"]
        fake_job(tmp_path / str(i), overrides=asked, rate=rate)
    frame = results.table(results.load(tmp_path))
    assert "| 1e+30 |" in results.markdown(frame)


def test_export_keeps_the_numbers(tmp_path):
    for i in range(3):
        fake_job(tmp_path / str(i), workers=2**i)
    frame = results.table(results.load(tmp_path))
    results.write_parquet(frame, tmp_path / "t.parquet")
    results.write_csv(frame, tmp_path / "t.csv")
    results.write_markdown(frame, tmp_path / "t.md")
    assert pl.read_parquet(tmp_path / "t.parquet").equals(frame)
    again = pl.read_csv(tmp_path / "t.csv", schema_overrides=frame.schema)
    assert again.equals(frame)
    *rows, blank, error = (tmp_path / "t.md").read_text().splitlines()
    assert len(rows) == 5 and len({row.count("|") for row in rows}) == 1
    assert not blank and error.startswith("- ±: standard error of the mean of n")
    assert "Time to target (s)" in rows[0] and "(n=1)" in rows[2]


def test_every_column_is_defined():
    assert all(c.title and c.meaning for c in results.COLUMNS.values())


def test_runs_over_other_links_are_other_configurations(tmp_path):
    for name, link in (("a", "1 Gbit/s"), ("b", "10 Gbit/s"), ("c", "1 Gbit/s")):
        fake_job(tmp_path / name, seed=ord(name))
        path = tmp_path / name / "result.json"
        record = json.loads(path.read_text())
        record["summary"]["link"] = link
        path.write_text(json.dumps(record))
    frame = results.table(results.load(tmp_path)).sort("link")
    assert frame["link"].to_list() == ["1 Gbit/s", "10 Gbit/s"]
    assert frame["n"].to_list() == [2, 1]
