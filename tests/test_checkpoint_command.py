"""``parsgd train`` that saves, ``resume=DIR``, ``export`` and ``evaluate``."""

import json
import shutil
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import yaml
from command_line import command  # noqa: F401
from fake_jobs import fake_job
from resumes import stored
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from test_checkpoint_folders import pytestmark  # noqa: F401
from tiny import tiny

from parsgd import UserError, cluster
from parsgd.checkpoint import leaves
from parsgd.checkpoint.differences import allowed
from parsgd.cli import export, model_files
from parsgd.cli.resume import resumed
from parsgd.data.dataset import Split
from parsgd.training.evaluate import evaluator

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
    assert "holds checkpoints" in err and "checkpoint.rounds" in err
    assert (run / "result.json").is_file()


PLAIN = (*RUN[:-2], "rounds=2", "hydra.run.dir=run")  # it saves nothing


@pytest.mark.parametrize("given", ["step=best", "force=true", "keep_last=3"])
def test_checkpoint_keys_that_nothing_would_use_are_refused(command, tmp_path, given):  # noqa: F811
    code, _, err = command("train", *PLAIN, f"checkpoint.{given}")
    assert code == 2 and "saves no checkpoints, so nothing would use it" in err
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


def test_F1_exported_model_scores_as_in_training(run, command):  # noqa: F811
    last = records(run)[-1]
    code, out, _ = command("evaluate", "run")
    assert code == 0
    line = next(x for x in out.splitlines() if x.startswith("test:"))
    assert f"accuracy {last['test_accuracy']:.6g}" in line
    assert "over 4 cpu devices" in out
    assert command("export", "run")[0] == 0
    named = load_file(run / "export" / "model.safetensors")
    assert command("export", "run", "out=again")[0] == 0
    twice = [run.parent / "again", run / "export"]
    assert len({(file / "model.safetensors").read_bytes() for file in twice}) == 1
    with safe_open(run / "export" / "model.safetensors", "numpy") as file:
        about = json.loads(file.metadata()["parsgd"])
    assert about["task"] == "digits" and about["config"]["workers"] == 2
    assert {name.partition("/")[0] for name in named} == {"params"}
    meta, kept = stored(run / "checkpoints")
    assert {*named} == {name for name in kept if name.startswith("params/")}
    back = ocp.PyTreeCheckpointer().restore(run / "export" / "orbax")
    back = dict(zip(leaves.names(back), jax.tree.leaves(back), strict=True))
    for name, x in named.items():
        one = kept[name] if meta["leaves"][name][2] else kept[name].mean(0)
        np.testing.assert_allclose(x, one, rtol=1e-6)
        np.testing.assert_array_equal(x, back[name])
    code, _, err = command("export", "run", "step=7")
    assert code == 2 and "holds the steps 20, 40" in err


def test_an_export_replaces_an_earlier_one_only(run, command, tmp_path, monkeypatch):  # noqa: F811
    package = tmp_path / "orbax" / "__init__.py"
    package.parent.mkdir()
    package.write_text("mine = 1\n")
    code, _, err = command("export", "run", "out=.")
    assert code == 2 and "orbax would be replaced" in err and "out=DIR" in err
    assert package.read_text() == "mine = 1\n"
    assert not (tmp_path / "model.safetensors").exists()
    code, _, err = command("export", "run", "out=")
    assert code == 2 and "out= is empty" in err

    other = tmp_path / "other" / "model.safetensors"
    other.parent.mkdir()
    save_file({"x": np.zeros(2)}, other)
    code, _, err = command("export", "run", "out=other")
    assert code == 2 and "other/model.safetensors would be replaced" in err

    out = tmp_path / "out"
    assert command("export", "run", "step=20", "out=out")[0] == 0
    before = contents(out)
    # Orbax's own words where the disk is full.
    full = ValueError("RESOURCE_EXHAUSTED: \"/a\" [os_error_code='28']")
    with monkeypatch.context() as patch:
        patch.setattr(ocp.Checkpointer, "save", raising(full))
        code, _, err = command("export", "run", "out=out")
    assert code == 2 and "out cannot be written (No space left on device)" in err
    assert contents(out) == before
    with monkeypatch.context() as patch:
        patch.setattr(model_files, "write_atomic", raising(PermissionError(13, "no")))
        code, _, err = command("export", "run", "out=out")
    assert code == 2 and "out cannot be written (no)" in err
    assert contents(out) == before
    assert command("export", "run", "out=out")[0] == 0
    after = contents(out)
    assert after["model.safetensors"] != before["model.safetensors"]
    assert {name.partition("/")[0] for name in after} == {"model.safetensors", "orbax"}
    shutil.rmtree(out / "orbax")
    assert command("export", "run", "out=out")[0] == 0
    assert (out / "orbax" / "_METADATA").is_file()


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def raising(error):
    def act(*args, **options):
        raise error

    return act


@pytest.mark.parametrize("name", ["evaluate", "export"])
def test_a_sweep_has_no_model_but_its_jobs_have(command, tmp_path, name):  # noqa: F811
    for job in (0, 1):
        fake_job(tmp_path / "sweep" / str(job), seed=job)
        (tmp_path / "sweep" / str(job) / "checkpoints").mkdir()
    code, _, err = command(name, "sweep")
    assert code == 2 and "is the folder of a sweep" in err
    assert "such as sweep/0" in err


def test_a_damaged_file_is_all_that_is_told(run, command):  # noqa: F811
    (run / "metrics.jsonl").write_bytes(b"\0\xff\n" * 9)
    code, _, err = command("train", "resume=run")
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith("parsgd: ") and "run/metrics.jsonl, line 1 " in line


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


def test_a_run_with_a_model_of_ones_own_is_exported(command, tmp_path):  # noqa: F811
    own = tmp_path / "own/task/model/net.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("_target_: own_net.Net\n")
    (tmp_path / "own_net.py").write_text(
        "from flax import linen as nn\n\n\n"
        "class Net(nn.Module):\n"
        "    @nn.compact\n"
        "    def __call__(self, x):\n"
        "        return nn.Dense(10)(x.reshape(len(x), -1))\n"
    )
    mine = ("--config-dir", "own")
    code, _, err = command("train", *mine, "task/model=net", *RUN, "rounds=10")
    assert code == 0, err
    code, _, err = command("export", "run")
    assert code == 2 and "own_net.Net is not called" in err and "--config-dir" in err
    for name, words in (("export", mine), ("evaluate", ["x._target_=own_net.Net"])):
        code, out, err = command(name, *words, "run")
        assert code == 0, err
    assert {*load_file(tmp_path / "run/export/model.safetensors")} == {
        "params/Dense_0/bias",
        "params/Dense_0/kernel",
    }
    code, _, err = command("train", "resume=run", "rounds=20")
    assert code == 2 and "give --config-dir again" in err
    code, out, err = command("train", *mine, "resume=run", "rounds=20")
    assert code == 0 and "goes on from step 20" in out, err


OWN_MODELS = """
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(8)(x.reshape(len(x), -1))
        return nn.Dense(10)(nn.BatchNorm(use_running_average=not train)(x))


class Nnx(nnx.Module):
    def __init__(self, width, *, rngs):
        self.inner = nnx.Linear(64, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.outer = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, x):
        return self.outer(self.norm(self.inner(x.reshape(len(x), -1))))


def pair(scale):
    def init(key, x):
        return {"w": scale * jax.random.normal(key, (x[0].size, 10))}

    return init, lambda params, x: x.reshape(len(x), -1) @ params["w"]
"""


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (
            ("_target_: own_models.Linen",),
            {
                "params/Dense_0/bias",
                "params/Dense_0/kernel",
                "params/BatchNorm_0/bias",
                "params/BatchNorm_0/scale",
                "params/Dense_1/bias",
                "params/Dense_1/kernel",
                "model/batch_stats/BatchNorm_0/mean",
                "model/batch_stats/BatchNorm_0/var",
            },
        ),
        (
            ("_target_: own_models.Nnx", "width: 8", "_partial_: true"),
            {
                "params/inner/bias",
                "params/inner/kernel",
                "params/norm/bias",
                "params/norm/scale",
                "params/outer/bias",
                "params/outer/kernel",
                "model/norm/mean",
                "model/norm/var",
            },
        ),
        (("_target_: own_models.pair", "scale: 0.1"), {"params/w"}),
    ],
    ids=["linen", "nnx", "pair"],
)
def test_F1_models_of_all_kinds_come_from_a_config_and_are_scored_again(
    command,  # noqa: F811
    tmp_path,
    monkeypatch,
    model,
    names,
):
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    own = tmp_path / "own/task/model/net.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("\n".join(model) + "\n")
    (tmp_path / "own_models.py").write_text(OWN_MODELS)
    mine = ("--config-dir", "own")
    code, _, err = command("train", *mine, "task/model=net", *RUN, "rounds=10")
    assert code == 0, err
    last = records(tmp_path / "run")[-1]
    code, out, err = command("evaluate", *mine, "run")
    assert code == 0, err
    assert f"test: accuracy {last['test_accuracy']:.6g}, " in out
    assert f"loss {last['test_loss']:.6g} " in out
    code, _, err = command("export", *mine, "run")
    assert code == 0, err
    named = load_file(tmp_path / "run/export/model.safetensors")
    assert {*named} == names
    # Two workers saw other data: the statistics are the mean of theirs.
    _, kept = stored(tmp_path / "run/checkpoints")
    for name in names:
        if name.startswith("model/"):
            each = kept[name]
            assert each.shape[0] == 2 and (each[0] != each[1]).any()
            np.testing.assert_allclose(named[name], each.mean(0), rtol=1e-6)


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_processes_count_each_example_once(monkeypatch, processes):
    task = tiny()
    params, state = task.init(jax.random.key(0))
    model = export.Model(task, params, state, 0, {})
    split = Split(*(x[:3] for x in task.data.test))
    whole = evaluator(task, split)(params, state)
    told = []

    def exchange(name, text, *, patient=False):
        assert patient  # a slower machine may take longer
        told.append(text)
        nothing = json.dumps(dict.fromkeys(whole, 0.0))
        return told if len(told) == processes else [nothing]

    monkeypatch.setattr(cluster, "exchange", exchange)
    monkeypatch.setattr(cluster, "processes", lambda: processes)
    for number in range(processes):
        monkeypatch.setattr(cluster, "process", lambda number=number: number)
        found = export._scores(model, split)  # the last one hears of all
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6)


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
