"""Which runs are seeds of one configuration, and how tables name what varies."""

import json

import pytest
from fake_jobs import fake_job, line, write_job

from parsgd import results


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
    told = "8 -> 2 workers at step 10, 2 -> 4 workers at step 20"
    assert row["resumed"] == told and row["workers"] == 4
    same = {"workers": 4, "earlier_workers": []}
    write_job(tmp_path / "1", [line(0, 0.1)], seed=1, summary=same)
    frame = results.table(results.load(tmp_path))
    assert frame["n"].to_list() == [1, 1]
    assert f"local_sgd, resumed={told}" in set(frame["configuration"])
    assert f"| {told} |" in results.markdown(frame)


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


def composed_job(folder, reducer, choices, **more):
    """A job whose strategy a file chose, not its command line."""
    call = {"_target_": f"parsgd.reducers.{reducer}"}
    strategy = {"_target_": "parsgd.compressed_sgd", "reducer": call}
    fake_job(folder, strategy=strategy, overrides=["+experiment=mine"], **more)
    path = folder / "result.json"
    record = json.loads(path.read_text()) | ({"choices": choices} if choices else {})
    path.write_text(json.dumps(record))


def test_a_choice_that_no_override_names_is_called_by_its_name(tmp_path):
    for name in ("power_sgd", "qsgd"):
        for seed in (0, 1):
            folder = tmp_path / f"{name}{seed}"
            composed_job(folder, name, {"strategy": name}, seed=seed)
    frame = results.table(results.load(tmp_path))
    assert sorted(frame["configuration"]) == ["power_sgd", "qsgd"]
    assert frame["n"].to_list() == [2, 2]
    # An earlier result does not tell, and is of the same configuration.
    composed_job(tmp_path / "power_sgd1", "power_sgd", None, seed=1)
    frame = results.table(results.load(tmp_path))
    assert sorted(frame["strategy"]) == ["power_sgd", "qsgd"]
    assert frame["n"].to_list() == [2, 2]
    assert results.load(tmp_path / "power_sgd1")[0].choices == {}
    # What was asked for comes first.
    composed_job(tmp_path / "qsgd0", "qsgd", {"strategy": "other"}, workers=1)
    path = tmp_path / "qsgd0" / "result.json"
    record = json.loads(path.read_text()) | {"overrides": ["strategy=mine"]}
    path.write_text(json.dumps(record))
    assert results.table(results.load(path.parent))["strategy"].to_list() == ["mine"]


def test_jobs_without_choices_are_named_as_their_like(tmp_path):
    """Of earlier versions, or killed: they stay beside the rest of their sweep."""
    for workers, choices in ((1, None), (2, {"strategy": "power_sgd"}), (4, None)):
        composed_job(tmp_path / f"{workers}", "power_sgd", choices, workers=workers)
    composed_job(tmp_path / "other", "qsgd", None, workers=2)
    table = results.table(results.load(tmp_path)).sort("workers", "strategy")
    named = ["power_sgd", "compressed_sgd", "power_sgd", "power_sgd"]
    assert table["strategy"].to_list() == named
    # Two names for the same calls do not tell which it was.
    composed_job(tmp_path / "8", "power_sgd", {"strategy": "own"}, workers=8)
    table = results.table(results.load(tmp_path)).sort("workers", "strategy")
    named = ["compressed_sgd", "compressed_sgd", "power_sgd", "compressed_sgd", "own"]
    assert table["strategy"].to_list() == named


def test_the_file_of_a_task_of_ones_own_is_known_as_before(tmp_path):
    for name, choices in (("a", None), ("b", {"task": "mine"})):
        task = {"_target_": "parsgd.tasks.csv", "path": f"/data/{name}.csv"}
        summary = {"data_checksum": "1a"}
        write_job(tmp_path / name, [line(9, 0.9)], task=task, summary=summary)
        path = tmp_path / name / "result.json"
        record = json.loads(path.read_text()) | {"choices": choices}
        path.write_text(json.dumps(record))
    (group,) = results.group(results.load(tmp_path))
    assert group.task == "a"
