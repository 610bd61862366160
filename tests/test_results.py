"""Grouping by seed, the table's numbers, and its exports."""

import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from parsgd import results
from parsgd.errors import UserError
from parsgd.results.export import markdown, no_spread, texts

sys.path.insert(0, str(Path(__file__).parent))
fake_jobs = importlib.import_module("fake_jobs")
fake_job = fake_jobs.fake_job
write_job, line = fake_jobs.write_job, fake_jobs.line


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


def test_what_a_config_says_twice_does_not_split_a_configuration(tmp_path):
    for code in ("one_bit", "top_k"):
        for seed in range(3):
            compressor = {"_target_": f"parsgd.compressors.{code}"}
            feedback = {"_target_": "parsgd.error_feedback", "seed": seed}
            feedback["compressor"] = compressor
            strategy = {"_target_": "parsgd.compressed_sgd", "reducer": feedback}
            fake_job(
                tmp_path / f"{code}{seed}",
                seed=seed,
                strategy=strategy,
                compressor=compressor,
                feedback=feedback,
                overrides=["strategy=compressed", f"compressor={code}", f"seed={seed}"],
            )
    frame = results.table(results.load(tmp_path))
    assert sorted(frame["n"]) == [3, 3]
    assert sorted(frame["compressor"]) == ["one_bit", "top_k"]
    assert not [name for name in frame.columns if "reducer" in name or "seed" in name]


def chain_job(folder, seed, code="top_k", decay=0.9, bucket=False):
    """A job of ``feedback=ef_momentum``, whose calls stand in a list."""
    compressor = {"_target_": f"parsgd.compressors.{code}"}
    feedback = {
        "_target_": "optax.chain",
        "_args_": [
            {"_target_": "parsgd.reducers.local_momentum", "decay": decay},
            {
                "_target_": "parsgd.error_feedback",
                "compressor": compressor,
                "bucket": bucket,
                "seed": seed,
            },
        ],
    }
    fake_job(
        folder,
        seed=seed,
        strategy={"_target_": "parsgd.compressed_sgd", "reducer": feedback},
        compressor=compressor,
        feedback=feedback,
        overrides=[],
    )


def test_calls_in_a_list_tell_configurations_apart_and_their_seeds_do_not(tmp_path):
    for decay in (0.5, 0.9):
        for seed in range(2):
            chain_job(tmp_path / f"{decay}{seed}", seed, decay=decay)
    frame = results.table(results.load(tmp_path))
    assert sorted(frame["n"]) == [2, 2]
    assert sorted(frame["feedback._args_.0.decay"]) == [0.5, 0.9]
    assert not [name for name in frame.columns if "reducer" in name or "seed" in name]


def test_a_compressor_in_a_list_is_said_once(tmp_path):
    for code in ("top_k", "qsgd"):
        chain_job(tmp_path / code, 0, code=code)
    frame = results.table(results.load(tmp_path))
    assert sorted(frame["compressor"]) == ["qsgd", "top_k"]
    assert not [name for name in frame.columns if "_args_" in name]


def test_a_function_named_after_compressors_hides_no_arguments(tmp_path):
    compressor = {"_target_": "parsgd.compressors.top_k"}
    for power in (1, 2):
        feedback = {
            "_target_": "my_compressors.feedback",
            "compressor": compressor,
            "power": power,
        }
        strategy = {"_target_": "parsgd.compressed_sgd", "reducer": feedback}
        fake_job(
            tmp_path / str(power),
            strategy=strategy,
            compressor=compressor,
            feedback=feedback,
            overrides=[],
        )
    frame = results.table(results.load(tmp_path))
    assert sorted(frame["feedback.power"]) == [1, 2]


def test_a_reducer_that_is_not_the_feedback_is_told(tmp_path):
    feedback = {"_target_": "parsgd.error_feedback", "bucket": False}
    for bucket in (False, True):
        reducer = feedback | {"bucket": bucket}
        fake_job(
            tmp_path / str(bucket),
            strategy={"_target_": "parsgd.compressed_sgd", "reducer": reducer},
            feedback=feedback,
            overrides=[],
        )
    assert len(results.table(results.load(tmp_path))) == 2


def test_single_seed_has_no_standard_error(tmp_path):
    fake_job(tmp_path)
    (row,) = results.table(results.load(tmp_path)).to_dicts()
    assert row["n"] == 1 and row["accuracy_sem"] is None


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


def test_what_varies_gets_a_column_in_the_users_words(tmp_path):
    for i, (rule, zeta) in enumerate([("none", 1.0), ("linear", 1.0), ("none", 0.5)]):
        config = {"scaling": {"_target_": f"parsgd.{rule}", "warmup": i}}
        config["strategy"] = {"_target_": "parsgd.block_momentum", "zeta": zeta}
        write_job(tmp_path / str(i), [line(0, 0.1)], **config)
        path = tmp_path / str(i) / "result.json"
        record = json.loads(path.read_text())
        record["overrides"] = [f"+scaling={rule}", f"strategy.zeta={zeta}", "seed=0"]
        path.write_text(json.dumps(record))
    frame = results.table(results.load(tmp_path))
    assert set(frame["scaling"]) == {"none", "linear"}
    assert set(frame["strategy.zeta"]) == {1.0, 0.5}
    # the group's resolved leaves are explained by the override
    assert not [c for c in frame.columns if c.startswith("scaling.")]
    assert frame.height == 3
    assert "block_momentum, scaling=linear, strategy.zeta=1.0" in set(
        frame["configuration"]
    )


def test_what_varies_without_overrides_comes_from_the_config(tmp_path):
    for i, (name, lr) in enumerate([("a", 0.1), ("a", 0.2), ("b", 0.2)]):
        strategy = {"_target_": f"parsgd.{name}", f"only_{name}": 1, "lr": lr}
        write_job(tmp_path / str(i), [line(0, 0.1)], strategy=strategy)
    frame = results.table(results.load(tmp_path))
    assert "strategy.lr" in frame.columns
    assert not [c for c in frame.columns if "only" in c]


def test_own_output_folder_in_the_config_does_not_split_seeds(tmp_path):
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        write_job(folder, [line(0, 0.1)], seed=seed, out=str(folder / "checkpoints"))
    assert results.table(results.load(tmp_path))["n"].to_list() == [2]


def test_files_beside_the_output_folder_tell_runs_apart(tmp_path):
    """Whose names only begin as that of the folder does."""
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        write_job(folder, [line(0, 0.1)], seed=seed, path=f"{folder}.csv")
    assert results.table(results.load(tmp_path))["n"].to_list() == [1, 1]


def test_repeated_seed_is_not_counted_twice(tmp_path):
    write_job(tmp_path / "0", [line(0, 0.5)], status="failed")
    write_job(tmp_path / "1", [line(0, 0.6)])
    write_job(tmp_path / "2", [line(0, 0.7)])
    (group,) = results.group(results.load(tmp_path))
    assert [(a.folder.name, b.folder.name) for a, b in group.aside] == [
        ("0", "2"),
        ("1", "2"),
    ]
    assert [job.folder.name for job in group.jobs] == ["2"]


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


def test_what_is_saved_or_shown_splits_no_configuration(tmp_path):
    for seed, more in enumerate(["checkpoint.rounds=5", "debug=true", ""]):
        asked = ["strategy=local_sgd", f"seed={seed}", *filter(None, [more])]
        # As an older result stored it.
        stored = {"checkpoint": {"rounds": seed, "keep_best": seed}}
        fake_job(tmp_path / f"{seed}", seed=seed, overrides=asked, **stored)
    fake_job(tmp_path / "3", workers=2, overrides=["workers=2"])
    frame = results.table(results.load(tmp_path))
    assert sorted(frame["n"]) == [1, 3]
    assert not [c for c in frame.columns if c.startswith(("checkpoint", "debug"))]


def test_a_run_with_other_workers_before_is_told_apart(tmp_path):
    changed = {"workers": 4, "earlier_workers": [[8, 10], [2, 20]]}
    write_job(tmp_path / "0", [line(0, 0.1)], summary=changed)
    (row,) = results.table(results.load(tmp_path)).to_dicts()
    assert row["resumed"] == "8 -> 2 -> 4 workers" and row["workers"] == 4
    same = {"workers": 4, "earlier_workers": []}
    write_job(tmp_path / "1", [line(0, 0.1)], seed=1, summary=same)
    frame = results.table(results.load(tmp_path))
    assert frame["n"].to_list() == [1, 1]
    assert "local_sgd, resumed=8 -> 2 -> 4 workers" in set(frame["configuration"])
    assert "| 8 -> 2 -> 4 workers |" in results.markdown(frame)


@pytest.mark.parametrize("group", ["scaling", "schedule"])
def test_a_choice_has_one_name_whether_it_was_asked_for_or_not(tmp_path, group):
    usual, other = {"scaling": ("none", "sqrt"), "schedule": ("constant", "cosine")}[
        group
    ]
    configs = {
        "none": {"_target_": "parsgd.scaling.none", "reference_batch": None},
        "sqrt": {"_target_": "parsgd.scaling.sqrt", "reference_batch": 32},
        "constant": None,
        "cosine": {"_target_": "optax.cosine_decay_schedule", "decay_steps": 7},
    }
    for i, (name, asked) in enumerate([(usual, 0), (usual, 1), (other, 1)]):
        given = [f"workers={i + 1}", *([f"{group}={name}"] if asked else [])]
        config = {group: configs[name]}
        fake_job(tmp_path / str(i), workers=i + 1, overrides=given, **config)
    frame = results.table(results.load(tmp_path))
    found = dict(zip(frame["workers"], frame[group], strict=True))
    assert found == {1: usual, 2: usual, 3: other}


def test_a_choice_of_a_file_is_named_as_that_of_a_command_line(tmp_path):
    for i, (rule, batch) in enumerate([("none", None), ("sqrt", 32), ("sqrt", 64)]):
        call = {"_target_": f"parsgd.scaling.{rule}", "reference_batch": batch}
        fake_job(tmp_path / str(i), overrides=[], scaling=call)
    frame = results.table(results.load(tmp_path))
    assert sorted(frame["scaling"]) == ["none", "sqrt", "sqrt"]
    assert frame["configuration"].n_unique() == 3  # those of one rule are told apart


def test_runs_of_several_processes_are_configurations_of_their_own(tmp_path):
    """Their seconds are measured over links, those of one process are simulated."""
    for name, processes in (("a", 1), ("b", 2)):
        fake_job(tmp_path / name)
        file = tmp_path / name / "result.json"
        written = json.loads(file.read_text())
        written["summary"]["placement"]["processes"] = processes
        file.write_text(json.dumps(written))
    alone, both = results.group(results.load([tmp_path]))
    assert (alone.aside, both.aside) == ((), ())
    assert (alone.varied["processes"], both.varied["processes"]) == (None, 2)
    (both,) = results.group(results.load([tmp_path / "b"]))
    assert both.varied == {"processes": 2}  # said also where it tells nothing apart
