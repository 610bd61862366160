"""A run that goes on with another length or other data says so, or is refused."""

import json
import shlex

import numpy as np
import pytest
from command_line import command  # noqa: F401
from damage import flip_bytes

RUN = ("workers=2", "checkpoint.rounds=1000", "hydra.run.dir=run")


def records(folder):
    return [json.loads(s) for s in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def table(tmp_path):
    """A task of a CSV file, and a function that changes one of its numbers."""
    file = tmp_path / "table.csv"
    rng = np.random.default_rng(0)

    def write(first=0.5):
        lines = [f"{x:.3f},{y}" for x, y in zip(values, labels, strict=True)]
        file.write_text("x,label\n" + "\n".join([f"{first},0", *lines]) + "\n")

    values, labels = rng.normal(size=199), rng.integers(0, 2, 199)
    write()
    return ("task=csv", f"task.path={file}", "worker_batch=8", "evaluations=1"), write


def test_phases_that_move_with_the_length_are_told(command, tmp_path):  # noqa: F811
    first = command("train", "strategy=post_local_sgd", "epochs=2", *RUN)
    assert first[0] == 0, first
    code, out, _ = command("train", "resume=run", "epochs=4", "evaluations=8")
    assert code == 0
    said = "phase 1 begins at step 44, was 22: at step 44"
    assert said not in out  # it is where it goes on, so it is not left
    assert "phase 1 begins at step 44, was 22" in out
    code, out, _ = command("train", "resume=run", "epochs=16")
    assert "phase 1 begins at step 176, was 44: at step 88 it is left" in out


def test_what_is_added_to_a_run_is_evaluated_as_densely(command, tmp_path):  # noqa: F811
    words = ("strategy=post_local_sgd", "epochs=2", "evaluations=8")
    assert command("train", *words, *RUN)[0] == 0
    assert command("train", "resume=run", "epochs=8")[0] == 0
    steps = [record["step"] for record in records(tmp_path / "run")]
    assert sum(step > 44 for step in steps) == 6  # three quarters of 8
    assert steps[-1] == 176


def test_other_data_in_the_same_file_are_another_run(command, tmp_path, table):  # noqa: F811
    words, change = table
    run = (*words, "epochs=1", "hydra.run.dir=run")
    assert command("train", *run)[0] == 0
    assert "completed before" in command("train", *run)[1]
    change(first=0.7)
    code, _, err = command("train", *run)
    assert code == 2 and "differs in the data themselves" in err


def test_a_sweep_repeats_what_was_run_on_other_data(command, tmp_path, table):  # noqa: F811
    words, change = table
    sweep = ("-m", *words, "epochs=1", "seed=0,1", "hydra.sweep.dir=sweep")
    assert command("train", *sweep)[0] == 0
    assert command("train", *sweep)[1].count("completed before") == 2
    change(first=0.7)
    code, out, _ = command("train", *sweep)
    assert code == 0 and "completed before" not in out
    assert out.count("differs in the data themselves: it is run again") == 2


def test_a_result_outlives_its_data(command, tmp_path, table):  # noqa: F811
    words, _ = table
    sweep = ("-m", *words, "epochs=1", "seed=0,1", "hydra.sweep.dir=sweep")
    assert command("train", *sweep)[0] == 0
    (tmp_path / "table.csv").unlink()
    code, out, _ = command("train", *sweep)
    assert code == 0 and out.count("completed before") == 2


def test_other_data_are_nothing_to_go_on_with(command, tmp_path, table):  # noqa: F811
    words, change = table
    assert command("train", *words, "epochs=1", *RUN)[0] == 0
    change(first=0.7)
    code, _, err = command("train", "resume=run", "epochs=2")
    code_of_scores, out, _ = command("evaluate", "run")
    assert code_of_scores == 0 and "warning: these are other data" in out
    assert code == 2 and "the data themselves, by a checksum: " in err, err


def test_dense_bytes_are_those_of_the_workers_of_the_time(command, tmp_path):  # noqa: F811
    words = ("strategy=local_sgd", "local_steps=4", "global_batch=32", "evaluations=2")
    run = ("checkpoint.rounds=1000", "hydra.run.dir=run")
    assert command("train", *words, "workers=1", "samples=1280", *run)[0] == 0
    code, out, _ = command("train", "resume=run", "workers=4", "samples=2560")
    assert code == 0, out
    summary = json.loads((tmp_path / "run/result.json").read_text())["summary"]
    # 40 steps of one worker, who sends nothing, then 40 of four in rounds of four.
    size = 4 * summary["parameters"]
    assert summary["bytes_dense"] == 1.5 * size * 40
    assert summary["bytes"] == 1.5 * size * 10


@pytest.mark.parametrize("strategy", ["post_local_sgd", "one_bit_adam"])
def test_what_is_planned_is_what_is_sent(command, tmp_path, strategy):  # noqa: F811
    adam = ("optimizer=adam",) if strategy == "one_bit_adam" else ()
    words = (f"strategy={strategy}", *adam, "epochs=2", "evaluations=2", *RUN)
    assert command("train", *words)[0] == 0
    for more in ((), ("resume=run", "epochs=3")):
        if more:
            assert command("train", *more)[0] == 0
        summary = json.loads((tmp_path / "run/result.json").read_text())["summary"]
        assert summary["bytes_planned"] == pytest.approx(summary["bytes"])
        assert summary["bytes_dense_planned"] == summary["bytes_dense"]
        assert summary["bytes_dense"] > summary["bytes"]


@pytest.mark.parametrize("workers", [1, 4])
def test_a_schedule_ends_with_a_run_of_other_workers(
    command,  # noqa: F811
    tmp_path,
    workers,
):
    where = ("checkpoint.rounds=1", "hydra.run.dir=run")
    words = ("schedule=cosine", "worker_batch=16", "global_batch=null", "epochs=2")
    first = ("workers=2", "target_accuracy=0.85")  # where it stops early
    code, _, err = command("train", *words, *where, *first)
    assert code == 0, err
    other = (f"workers={workers}", "target_accuracy=null")
    code, out, err = command("train", "resume=run", *other)
    assert code == 0, err
    history = records(tmp_path / "run")
    last = history[-1]["step"]
    assert last not in (44, 88, 176)  # neither number of workers' alone
    assert f"parts of the run's length are of {last} steps, done and left" in out
    rates = [record["learning_rate"] for record in history]
    assert abs(rates[-1]) < 1e-6 * rates[0] < rates[-2]
    # As a part of a sweep it is one configuration, wherever it went on.
    assert "decay_steps: 44\n" in (tmp_path / "run" / "config.yaml").read_text() or (
        workers == 1
    )
    for again in ((*words, *where, *other), (*words, where[1], *other)):
        code, out, err = command("train", *again)
        assert "completed before" in out, err


@pytest.mark.parametrize("named", [False, True])
def test_a_length_that_came_from_a_lost_checkpoint_is_not_taken(
    command,  # noqa: F811
    tmp_path,
    named,
):
    words = ("worker_batch=16", "global_batch=null", "schedule=cosine", "workers=2")
    where = ("checkpoint.rounds=8", "hydra.run.dir=run", "epochs=1")
    assert command("train", *words, *where)[0] == 0
    folder = tmp_path / "run" / "checkpoints"
    newest = max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    flip_bytes(folder / f"{newest}")
    step = newest if named else "latest"
    other = ("workers=1", "epochs=2", f"checkpoint.step={step}")
    code, out, err = command("train", "resume=run", *other)
    assert code == 0, err
    assert out.count(f"the checkpoint of step {newest} cannot be read") == 1
    assert (folder / f"{newest}.unreadable").exists()
    last = records(tmp_path / "run")[-1]
    assert f"parts of the run's length are of {last['step']} steps" in out


LOCAL = ("strategy=local_sgd", "local_steps=4", "worker_batch=8", "global_batch=null")


@pytest.fixture
def two_shapes(command, tmp_path):  # noqa: F811
    """A run of four workers that went on with two, and its last step."""
    words = (*LOCAL, "workers=4", "epochs=1", "schedule=cosine", "hydra.run.dir=run")
    assert command("train", *words, "checkpoint.rounds=10")[0] == 0
    more = ("workers=2", "epochs=1.5", "checkpoint.rounds=1000")
    code, _, err = command("train", "resume=run", *more)
    assert code == 0, err
    folder = tmp_path / "run" / "checkpoints"
    return folder, max(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def test_a_length_is_that_of_the_checkpoint_it_goes_on_from(
    command,  # noqa: F811
    tmp_path,
    two_shapes,
):
    folder, newest = two_shapes
    flip_bytes(folder / f"{newest}")
    # As many workers as the checkpoint before has, and so its batch.
    code, out, err = command("train", "resume=run", "workers=4", "epochs=4")
    assert code == 0, err
    last = records(tmp_path / "run")[-1]
    assert last["step"] == 176 and abs(last["learning_rate"]) < 1e-9
    assert "resumes with epochs=4.0, was 1.0" in out
    assert "resumes with workers" not in out


def test_options_of_an_older_checkpoint_are_not_taken_for_those_of_the_last_run(
    command,  # noqa: F811
    tmp_path,
    two_shapes,
):
    folder, newest = two_shapes
    before = (tmp_path / "run" / "result.json").read_text()
    (folder / f"{newest}" / "meta" / "metadata").write_text("{")
    for given in ([], ["step=latest"], [f"++checkpoint.step={newest}"]):
        code, _, err = command("train", "resume=run", *given)
        assert code == 2 and "was saved with other options than the last run's" in err
        assert (tmp_path / "run" / "result.json").read_text() == before
    (tmp_path / "run").rename(tmp_path / "a b,c")
    _, _, err = command("train", "resume=a b,c")
    assert shlex.quote("hydra.run.dir='a b,c'") in err
    (tmp_path / "a b,c").rename(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("a: [")
    assert command("train", "resume=run")[0] == 2
    code, out, err = command("train", "resume=run", "step=44", "epochs=2")
    assert code == 0 and "goes on from step 44" in out, err


def test_what_is_replaced_is_told_beside_what_cannot_be_read(
    command,  # noqa: F811
    tmp_path,
):
    words = (*LOCAL, "workers=4", "epochs=1", "checkpoint.keep_last=4")
    words += ("checkpoint.rounds=3", "hydra.run.dir=run")
    assert command("train", *words)[0] == 0
    flip_bytes(tmp_path / "run" / "checkpoints" / "24")
    code, out, err = command("train", "resume=run", "step=24")
    assert code == 0, err
    assert "checkpoint of step 24 cannot be read" in out
    assert "kept as 44.replaced, 36.replaced" in out and "goes on from step 12" in out


@pytest.mark.parametrize("lost", [False, True])
def test_a_command_that_is_refused_renames_nothing(command, tmp_path, lost):  # noqa: F811
    words = (*LOCAL, "workers=4", "epochs=1", "checkpoint.keep_last=4")
    words += ("checkpoint.rounds=3", "hydra.run.dir=run")
    assert command("train", *words)[0] == 0
    folder = tmp_path / "run" / "checkpoints"
    if lost:  # the refusal comes after it was read, in a second attempt
        flip_bytes(folder / "36")
    step, epochs = (36, 0.25) if lost else (24, 0.5)
    before = {path.name for path in folder.iterdir()}
    again = ("train", "resume=run", f"step={step}", f"epochs={epochs}")
    code, _, err = command(*again)
    assert code == 2 and "and the checkpoint has done the work of 24" in err
    after = {path.name.removesuffix(".unreadable") for path in folder.iterdir()}
    assert after == before


def test_a_run_that_reached_its_target_says_what_goes_on(
    command,  # noqa: F811
    tmp_path,
):
    words = (*LOCAL, "workers=4", "epochs=4", "target_accuracy=0.8", "evaluations=20")
    code, out, _ = command("train", *words, "checkpoint.rounds=10", "hydra.run.dir=run")
    step = records(tmp_path / "run")[-1]["step"]
    assert code == 0 and f"target_accuracy=0.8 was reached at step {step} of " in out
    before = (tmp_path / "run" / "result.json").read_text()
    code, out, _ = command("train", "resume=run")
    assert code == 0 and "with target_accuracy above 0.8, or null, goes on" in out
    saved = sorted((tmp_path / "run" / "checkpoints").iterdir())
    rate = ["optimizer.learning_rate=0.5", "checkpoint.force=true"]
    for more in (["epochs=6"], ["workers=2"], ["epochs=6", f"step={step}"], rate):
        code, _, err = command("train", "resume=run", *more)
        assert code == 2 and f"was reached at step {step}" in err
        assert (tmp_path / "run" / "result.json").read_text() == before
        assert sorted((tmp_path / "run" / "checkpoints").iterdir()) == saved
    code, _, err = command("train", "resume=run", "target_accuracy=null")
    assert code == 0 and records(tmp_path / "run")[-1]["step"] == 176, err


def test_the_same_data_may_lie_elsewhere(command, tmp_path, table, monkeypatch):  # noqa: F811
    words, change = table
    run = ("checkpoint.rounds=5", f"hydra.run.dir={tmp_path / 'run'}", "epochs=1")
    named = (words[0], "task.path=table.csv", *words[2:])
    assert command("train", *named, *run)[0] == 0
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    there = f"task.path={tmp_path / 'table.csv'}"
    code, out, err = command("train", f"resume={tmp_path / 'run'}", there, "epochs=2")
    assert code == 0 and "resumes with task.path=" in out, err
    kept = json.loads((tmp_path / "run/result.json").read_text())
    assert kept["summary"]["earlier_settings"] == []
    code, out, err = command(
        "train", f"resume={tmp_path / 'run'}", "task.path=../table.csv"
    )
    assert code == 0, err
    (tmp_path / "table.csv").rename(tmp_path / "moved.csv")
    for act in ("evaluate", "export"):
        code, _, err = command(act, f"{tmp_path / 'run'}")
        assert code == 2 and "table.csv" in err
        code, out, err = command(act, f"{tmp_path / 'run'}", "task.path=../moved.csv")
        assert code == 0 and "warning" not in out, err
    assert command("evaluate", f"{tmp_path / 'run'}", "task.data_dir=x")[0] == 2
    change(first=0.7)
    more = ("task.path=../table.csv", "epochs=3")
    code, _, err = command("train", f"resume={tmp_path / 'run'}", *more)
    assert code == 2 and "the data themselves" in err
