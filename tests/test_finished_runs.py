"""A run that has ended, repeated with other settings: refused, or told."""

import json

import pytest
from command_line import command  # noqa: F401

from parsgd import results

SMALL = ("worker_batch=64", "epochs=1", "evaluations=1", "checkpoint.rounds=10")


def files(folder):
    """What the files of a run hold, but for what each command writes."""
    found = (path for path in folder.rglob("*") if path.is_file())
    others = {"train.log", "lock", ".hydra"}
    return {p: p.read_bytes() for p in found if not others.intersection(p.parts)}


def result(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("optimizer.learning_rate=0.2",), "optimizer.learning_rate=0.2 (was 0.1)"),
        (("optimizer.learning_rate=0.2", "evaluations=2"), "learning_rate=0.2"),
        (("seed=1", "checkpoint.force=true"), "seed=1 (was 0)"),
        (("workers=2", "worker_batch=32"), "workers=2 (was 1)"),
    ],
)
def test_a_run_without_a_step_left_keeps_its_settings(command, tmp_path, change, named):  # noqa: F811
    words = ("train", *SMALL, "hydra.run.dir=run", "optimizer.learning_rate=0.1")
    assert command(*words)[0] == 0
    before = files(tmp_path / "run")
    code, _, err = command(*words, *change)
    assert code == 2 and "all 22 steps are done, so none would be trained" in err
    assert named in err and err.count("\n") == 1
    assert files(tmp_path / "run") == before


def test_a_run_without_a_step_left_is_evaluated_and_placed_otherwise(command, tmp_path):  # noqa: F811
    words = ("train", *SMALL, "hydra.run.dir=run")
    assert command(*words)[0] == 0
    for change in ("placement=debug", "train_examples=10", "samples=1413"):
        more = ("epochs=null",) if change.startswith("samples") else ()
        code, _, err = command(*words, change, *more)
        assert code == 0, err
        summary = result(tmp_path / "run")["summary"]
        assert summary["earlier_settings"] == summary["earlier_placements"] == []


def test_a_finished_row_of_a_sweep_keeps_its_settings(command, tmp_path):  # noqa: F811
    own = tmp_path / "own" / "experiment" / "rates.yaml"
    own.parent.mkdir(parents=True)
    text = "# @package _global_\noptimizer:\n  learning_rate: {}\n"
    own.write_text(text.format(0.1))
    words = ("train", "-m", "--config-dir", "own", "+experiment=rates", *SMALL)
    words += ("seed=0,1", "hydra.sweep.dir=sweep")
    code, _, err = command(*words)
    assert code == 0, err
    before = [(tmp_path / "sweep" / s / "result.json").read_bytes() for s in "01"]
    own.write_text(text.format(0.2))
    code, out, _ = command(*words)
    assert code == 1 and out.count("refused: sweep/") == 2
    assert "sweep/1: all 22 steps are done" in out
    assert not (tmp_path / "sweep" / ".refused").exists()
    assert before == [
        (tmp_path / "sweep" / s / "result.json").read_bytes() for s in "01"
    ]


def test_a_run_that_went_on_with_other_settings_says_what_they_were(
    command,  # noqa: F811
    tmp_path,
):
    words = ("train", *SMALL, "optimizer.learning_rate=0.1", "hydra.run.dir=run")
    assert command(*words)[0] == 0
    pure = (*SMALL, "epochs=3", "hydra.run.dir=pure")
    assert command("train", *pure, "optimizer.learning_rate=0.2")[0] == 0
    assert result(tmp_path / "pure")["summary"]["earlier_settings"] == []
    for more in (["epochs=2", "optimizer.learning_rate=0.2"], ["epochs=3"]):
        code, _, err = command("train", "resume=run", *more)
        assert code == 0, err
        was = result(tmp_path / "run")["summary"]["earlier_settings"]
        assert was == [[{"optimizer.learning_rate": 0.1}, 22]]
    frame = results.table(results.load(tmp_path))
    told = [None, "optimizer.learning_rate=0.1 until step 22"]
    assert sorted(frame["resumed"], key=str) == told


def test_another_length_counts_where_parts_of_it_do(command, tmp_path):  # noqa: F811
    words = (*SMALL, "schedule=cosine", "hydra.run.dir=run")
    assert command("train", *words)[0] == 0
    code, _, err = command("train", "resume=run", "epochs=2")
    assert code == 0, err
    was = result(tmp_path / "run")["summary"]["earlier_settings"]
    assert was == [[{"epochs": 1.0}, 22]]


def test_a_command_that_was_refused_does_not_name_the_run(command, tmp_path):  # noqa: F811
    words = ("train", *SMALL, "hydra.run.dir=run")
    assert command(*words, "strategy=local_sgd")[0] == 0
    (tmp_path / "run" / "result.json").unlink()  # as of one that was killed
    assert command(*words, "strategy=diloco", "local_steps=2")[0] == 2
    (job,) = results.load(tmp_path)
    assert job.status == "interrupted" and "strategy=local_sgd" in job.overrides
    assert results.table([job])["strategy"].to_list() == ["local_sgd"]
