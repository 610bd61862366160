"""Models that are exported and scored again: their files, kinds and examples."""

import json
import shutil
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from command_line import command  # noqa: F401
from fake_jobs import fake_job
from resumes import stored
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from test_checkpoint_command import RUN, records, run  # noqa: F401
from test_checkpoint_folders import pytestmark  # noqa: F401
from tiny import tiny

from parsgd import cluster
from parsgd.checkpoint import leaves
from parsgd.cli import export, model_files
from parsgd.data.dataset import Split
from parsgd.training.evaluate import evaluator


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
