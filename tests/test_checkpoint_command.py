"""``parsgd train`` that saves, and ``resume=DIR``."""

import json

import pytest
import yaml
from command_line import command  # noqa: F401
from resumes import stored
from test_checkpoint_folders import pytestmark  # noqa: F401

from parsgd import UserError
from parsgd.checkpoint.differences import allowed
from parsgd.cli.resume import resumed

RUN = ("strategy=local_sgd", "workers=2", "local_steps=2", "optimizer=momentum")
RUN += ("evaluations=2", "checkpoint.rounds=10", "hydra.run.dir=run")


@pytest.fixture
def run(command, tmp_path):  # noqa: F811
    code, out, _ = command("train", *RUN, "rounds=20")
    assert code == 0, out
    return tmp_path / "run"


def records(folder):
    return [json.loads(s) for s in (folder / "metrics.jsonl").read_text().splitlines()]


def test_J12_D7_resume_goes_on_and_says_what_changed(run, command):  # noqa: F811
    before = records(run)
    code, out, _ = command(
        "train", "resume=run", "rounds=30", "optimizer.learning_rate=0.05"
    )
    assert code == 0
    assert "resumes with optimizer.learning_rate=0.05, was 0.02" in out
    assert "resumes with rounds=30, was 20" in out
    assert "goes on from step 40, round 20" in out
    after = records(run)
    assert after[: len(before)] == before
    assert [r["step"] for r in after[len(before) :]] == [60]
    assert {r["learning_rate"] for r in before} == {0.02}
    assert after[-1]["learning_rate"] == 0.05
    # The same once more: it is complete.
    code, out, _ = command("train", "resume=run")
    assert code == 0
    assert records(run) == after
    # Unasked the rate stays what it was last.
    code, out, _ = command("train", "resume=run", "rounds=32")
    assert code == 0 and "learning_rate" not in out.partition("goes on")[0]
    assert records(run)[-1]["step"] == 64
    assert records(run)[-1]["learning_rate"] == 0.05


def test_D2_a_rate_is_scaled_once_however_often_a_run_goes_on(command, tmp_path):  # noqa: F811
    # 22 steps are an epoch: the first run ends within the warm-up.
    words = ("scaling=linear", "scaling.warmup_epochs=1", "workers=2", "evaluations=99")
    words += ("optimizer=momentum", "checkpoint.rounds=50")
    code, out, _ = command("train", *words, "rounds=36", "hydra.run.dir=whole")
    assert code == 0, out
    code, out, _ = command("train", *words, "rounds=10", "hydra.run.dir=run")
    assert code == 0, out
    for rounds in (25, 36):
        code, out, _ = command("train", "resume=run", f"rounds={rounds}")
        assert code == 0, out
    whole, ours = records(tmp_path / "whole"), records(tmp_path / "run")
    for record in (*whole, *ours):
        del record["seconds"]
    assert ours == whole and len(whole) == 37
    rates = [record["learning_rate"] for record in whole]
    wanted = [0.02 * (1 + min(1, step / 22)) for step in range(37)]
    assert rates == pytest.approx(wanted, rel=1e-6)
    for folder in ("whole", "run"):
        config = yaml.safe_load((tmp_path / folder / "config.yaml").read_text())
        assert config["optimizer"]["learning_rate"] == 0.02
        meta, _ = stored(tmp_path / folder / "checkpoints")
        assert meta["config"]["optimizer"]["learning_rate"] == 0.02


def test_H12_another_strategy_is_refused_and_changes_nothing(run, command):  # noqa: F811
    before = (run / "metrics.jsonl").read_text()
    code, _, err = command("train", "resume=run", "strategy=diloco", "local_steps=5")
    assert code == 2
    assert "strategy._target_: parsgd.diloco, saved with parsgd.local_sgd" in err
    assert "local_steps: 5, saved with 2" in err
    assert (run / "metrics.jsonl").read_text() == before
    assert (run / "result.json").is_file()
    code, out, _ = command("train", "resume=run", "rounds=22")
    assert code == 0 and "goes on from step 40" in out


def test_H13_goes_back_to_a_checkpoint_once(run, command):  # noqa: F811
    change = ("optimizer.learning_rate=0.01", "step=20")
    code, out, _ = command("train", "resume=run", *change)
    assert code == 0 and "goes on from step 20" in out
    assert "kept as 40.replaced" in out
    code, out, _ = command("train", "resume=run", "rounds=22")
    assert code == 0 and "goes on from step 40" in out
    code, _, err = command("train", "resume=run", "step=7")
    assert code == 2 and "step=7" in err and "40, 44;" in err


def test_H12_forced_it_must_fit(run, command):  # noqa: F811
    force = ("checkpoint.force=true", "rounds=60")
    code, out, _ = command("train", "resume=run", "local_steps=1", *force)
    assert code == 0
    assert "resumes with local_steps=1, was 2 (forced)" in out
    more = ("optimizer=adam", *force, "rounds=70")
    code, _, err = command("train", "resume=run", *more)
    assert code == 2
    assert "does not fit this run" in err
    assert "strategy/0/mu/" in err and "absent" in err


def test_saved_runs_do_not_start_anew_unasked(run, command):  # noqa: F811
    code, _, err = command("train", *RUN[:-2], "hydra.run.dir=run")
    assert code == 2
    assert "holds checkpoints" in err and "checkpoint.rounds, " in err
    assert "checkpoint.minutes or checkpoint.keep_best" in err
    assert (run / "result.json").is_file()


PLAIN = (*RUN[:-2], "rounds=2", "hydra.run.dir=run")  # it saves nothing


@pytest.mark.parametrize("given", ["step=best", "force=true", "keep_last=3"])
def test_checkpoint_keys_that_nothing_would_use_are_refused(command, tmp_path, given):  # noqa: F811
    code, _, err = command("train", *PLAIN, f"checkpoint.{given}")
    assert code == 2 and "saves no checkpoints, so nothing would use it" in err
    assert "checkpoint.minutes or checkpoint.keep_best too, or leave it out" in err
    assert f"checkpoint.{given}: " in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("step", ["best", "4"])
def test_a_step_of_a_run_without_checkpoints_is_refused(command, tmp_path, step):  # noqa: F811
    given = ("checkpoint.rounds=1", f"checkpoint.step={step}")
    message = f"checkpoint.step={step}: {tmp_path / 'run'} holds no checkpoint"
    code, _, err = command("train", *PLAIN, *given)
    assert code == 2 and message in err
    assert not (tmp_path / "run").exists()
    assert command("train", *PLAIN)[0] == 0
    before = (tmp_path / "run" / "result.json").read_text()
    code, _, err = command("train", *PLAIN, *given)
    assert code == 2 and message in err and "differs in" not in err
    assert (tmp_path / "run" / "result.json").read_text() == before


def test_a_sweep_that_is_wrong_about_its_checkpoints_is_told_once(command, tmp_path):  # noqa: F811
    words = ("-m", *RUN[:-2], "rounds=2", "hydra.sweep.dir=sweep", "seed=0,1")
    code, _, err = command("train", *words, "checkpoint.step=best")
    assert code == 2 and "(so in all 2 jobs)" in err
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume=nowhere"], "no such folder"),
        (["resume=."], "holds no checkpoint"),
        (["resume=.", "-m"], "one run goes on at a time"),
        (["resume=.", "resume=x"], "one run goes on at a time"),
    ],
)
def test_resume_explains_itself(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        resumed(arguments)


def test_what_may_differ(tmp_path):
    old = {"seed": 0, "workers": 4, "optimizer": {"_target_": "a", "b1": 0.9}}
    new = {"seed": 0, "workers": 2, "optimizer": {"_target_": "a", "b1": 0.8}}
    lines = allowed(old, new, force=False, folder=tmp_path)
    assert lines == [
        "resumes with workers=2, was 4",
        "resumes with optimizer.b1=0.8, was 0.9",
    ]
    with pytest.raises(UserError, match=r"optimizer\._target_: x, saved with a"):
        allowed(
            old, {**old, "optimizer": {"_target_": "x"}}, force=False, folder=tmp_path
        )


def test_a_checkpoint_names_its_versions(run):
    meta, _ = stored(run / "checkpoints")
    assert {"parsgd", "jax"} <= {*meta["versions"]}


def test_a_folder_does_not_choose_parts_of_hydra(run):
    (newest,) = (run / "checkpoints").glob("40/meta/metadata")
    meta = json.loads(newest.read_text())
    evil = ["+hydra.callbacks.evil._target_=os.system", "hydra/launcher=x", "--info"]
    newest.write_text(json.dumps(meta | {"overrides": meta["overrides"] + evil}))
    words = resumed([f"resume={run}"])
    assert "workers=2" in words
    assert not [w for w in words if "evil" in w or "launcher" in w or w == "--info"]


def test_a_job_of_an_experiment_that_sweeps_goes_on_alone(command, tmp_path):  # noqa: F811
    own = tmp_path / "own" / "experiment" / "small.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(
        "# @package _global_\nworker_batch: 64\nhydra:\n  mode: MULTIRUN\n"
        "  sweeper:\n    params:\n      seed: '3'\n"
    )
    words = ("+experiment=small", "--config-dir", "own", "evaluations=1")
    saves = ("checkpoint.rounds=10", "hydra.sweep.dir=sweep")
    code, _, err = command("train", *words, *saves, "epochs=1")
    assert code == 0, err
    more = ("resume=sweep/0", "--config-dir", "own", "epochs=2")
    code, out, err = command("train", *more)
    assert code == 0 and "goes on from step 22" in out, err
    assert records(tmp_path / "sweep" / "0")[-1]["step"] == 44
    assert not (tmp_path / "multirun").exists()


def test_a_resumed_run_finds_its_processes_as_this_command_says(run):
    (newest,) = (run / "checkpoints").glob("40/meta/metadata")
    meta = json.loads(newest.read_text())
    own = ["cluster=manual", "cluster.coordinator=gone:1", "debug=true"]
    newest.write_text(json.dumps(meta | {"overrides": meta["overrides"] + own}))
    words = resumed([f"resume={run}", "cluster=none"])
    assert "workers=2" in words and "cluster=none" in words
    assert not [w for w in words if w in own]
