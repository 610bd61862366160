"""What the command makes of a Ctrl-C that got lost, and of a fault in a user's code."""

import subprocess
import sys

import optax
import pytest
from tiny import tiny

import parsgd
from parsgd.config.targets import call
from parsgd.errors import raised_at, reason_of


def test_a_ctrl_c_that_a_callback_drops_comes_again():
    script = (
        "import gc, os, signal, sys\n"
        "from parsgd.cli import console\n"
        "def at_collection(phase, info):\n"
        "    if phase == 'start' and not at_collection.done:\n"
        "        at_collection.done = True\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "at_collection.done = False\n"
        "def command(name, rest):\n"
        "    import time\n"
        "    gc.callbacks.append(at_collection)\n"
        "    gc.collect()\n"
        "    time.sleep(30)\n"
        "console._command = command\n"
        "sys.exit(console.main(['train']))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=25
    )
    assert run.returncode == 130 and "interrupted" in run.stderr


def test_ctrl_c_names_the_folder_of_a_sweep_that_a_file_asks_for(monkeypatch, capsys):
    # Such as +experiment=demo, with no -m on the command line.
    from parsgd.cli import console, sweep

    for folders, said in (([], "resume=DIR"), (["swept"], "hydra.sweep.dir=swept")):
        monkeypatch.setattr(sweep, "_folders", folders)
        assert console._interrupted("train", ["+experiment=demo"]) == 130
        assert said in capsys.readouterr().err


def test_a_fault_in_a_users_own_code_is_placed(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def act():\n    return {}['w']\n")
    monkeypatch.syspath_prepend(tmp_path)
    import mine

    with pytest.raises(KeyError) as caught:
        mine.act()
    error = caught.value.with_traceback(caught.tb.tb_next)  # without this test's own
    assert raised_at(error) == " (mine.py:2)"
    assert raised_at(ValueError("never raised")) == ""


STAGES = {"init": "init", "local": "local", "sync": "sync", "readout": "readout"}
STAGES |= {"loss": "loss", "metrics": "evaluation"}


@pytest.mark.parametrize("kind", ["debug", "vmap"])
@pytest.mark.parametrize("part", STAGES)
def test_a_fault_that_tracing_finds_names_its_stage(part, kind):
    def fault(*_, **__):
        raise KeyError("nothing")

    task, strategy = tiny(), parsgd.local_sgd(optax.sgd(0.1))
    if part in strategy._fields:
        strategy = strategy._replace(**{part: fault})
    else:
        task = task._replace(**{part: fault})
    sizes = {"workers": 2, "worker_batch": 4, "rounds": 1}
    with pytest.raises(KeyError) as caught:
        parsgd.fit(task, strategy, placement=kind, **sizes)
    assert raised_at(caught.value).endswith(f", in stage '{STAGES[part]}')")


@pytest.mark.parametrize("kind", [ValueError, TypeError])
def test_a_fault_of_a_strategy_of_the_users_own_stays_what_it_is(kind):
    def sync(params, state):
        raise kind("not what it seems")

    strategy = parsgd.local_sgd(optax.sgd(0.1))._replace(sync=sync)
    with pytest.raises(kind, match="not what it seems") as caught:
        parsgd.fit(tiny(), strategy, workers=2, worker_batch=4, rounds=1)
    assert not isinstance(caught.value, parsgd.UserError)
    assert "test_faults.py" in reason_of(caught.value)


def test_a_fault_in_a_factory_of_the_users_own_stays_what_it_is(tmp_path, monkeypatch):
    (tmp_path / "factories.py").write_text(
        "def slow(optimizer):\n    return 1 + 'a'\n"
        "def strict(optimizer, pull):\n    raise ValueError('pull is too much')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = {"allowed": ("factories",), "optimizer": None}
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        call({"_target_": "factories.slow"}, "strategy", **given)
    assert reason_of(caught.value).endswith("(factories.py:2)")
    with pytest.raises(parsgd.UserError, match=r"strategy\.pull: .* no such argument"):
        call({"_target_": "factories.slow", "pull": 2}, "strategy", **given)
    with pytest.raises(parsgd.UserError, match=r"pull is too much \(factories\.py:4\)"):
        call({"_target_": "factories.strict", "pull": 2}, "strategy", **given)


def test_a_models_own_init_is_a_stage_too():
    task = tiny()._replace(init=lambda key: {}["nothing"])
    with pytest.raises(KeyError) as caught:
        parsgd.fit(task, parsgd.sync_sgd(optax.sgd(0.1)), worker_batch=4, rounds=1)
    assert "in stage 'init of the model'" in raised_at(caught.value)
