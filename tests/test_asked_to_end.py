# ruff: noqa: F811  (pytest finds imported fixtures by their name)
"""What ``parsgd train`` says when a signal ends it, and that what it says goes on."""

import errno
import os
import shlex
import signal
from types import SimpleNamespace

import pytest
from command_line import command  # noqa: F401
from omegaconf import OmegaConf
from test_checkpoint_folders import pytestmark  # noqa: F401

from parsgd import signals
from parsgd.cli import children, console, job, saving, sweep

RUN = ("strategy=local_sgd", "workers=2", "local_steps=2", "evaluations=2", "rounds=20")
RUN += ("checkpoint.rounds=10",)
NET = """
from flax import linen as nn


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(x.reshape(len(x), -1))
"""


@pytest.fixture
def asked(monkeypatch):
    """Runs get SIGTERM in their first dispatch, while it is a member of the set."""
    when = {"now"}
    progress = job.JobRecorder.progress

    def ask(self, *args):
        progress(self, *args)
        if when:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(job.JobRecorder, "progress", ask)
    monkeypatch.setattr(signals, "SAME_SECONDS", 1e9)
    return when


def said(err):
    """The line on what is saved, and the command that it names."""
    (line,) = [line for line in err.splitlines() if "asked to end (SIGTERM)" in line]
    return line, shlex.split(line.rpartition("; ")[2].removesuffix(" goes on"))


@pytest.mark.parametrize("named", ["--config-dir", "_target_"])
def test_what_goes_on_with_code_of_ones_own_is_named_whole(
    command, tmp_path, asked, named
):
    own = tmp_path / "my own" / "task/model/net.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("_target_: net_of_mine.Net\n")
    (tmp_path / "net_of_mine.py").write_text(NET)
    words = ["--config-dir", "my own", "task/model=net"]
    if named == "_target_":
        words = ["~task/model", "+task.model={_target_: net_of_mine.Net}"]
    code, _, err = command("train", *words, *RUN, "hydra.run.dir='a b,c'")
    assert code == 143, err
    line, (program, *again) = said(err)
    assert f"round 1 is saved in {tmp_path / 'a b,c' / 'checkpoints'}" in line
    assert program == "parsgd" and again[-1] == f"resume={tmp_path / 'a b,c'}"
    asked.clear()
    code, out, err = command(*again)
    assert code == 0 and "goes on from step 2," in out, err


def test_of_a_sweep_the_rest_is_named_too(command, tmp_path, monkeypatch, asked):
    hold, held = sweep.held, []
    monkeypatch.setattr(sweep, "held", lambda f: held.append(hold(f)) or held[-1])
    words = ("train", "-m", *RUN, "seed=0,1")
    code, _, err = command(*words, "hydra.sweep.dir='a b,c'")
    assert code == 143
    _, again = said(err)
    assert again[-1] == f"resume={tmp_path / 'a b,c' / '0'}"
    (line,) = [line for line in err.splitlines() if "does what is missing" in line]
    where = line.removeprefix("parsgd: The same command with ")
    (where,) = shlex.split(where.removesuffix(" does what is missing"))
    asked.clear()
    os.close(held.pop())  # as the end of the process does
    code, out, err = command(*words, where)
    assert code == 0 and "goes on from step 2," in out, err
    assert "2 of 2 jobs completed" in out


def test_a_job_that_has_diverged_ends_its_sweep_too(command, tmp_path, monkeypatch):
    record = job.JobRecorder.record

    def ask(self, entry):
        record(self, entry)
        if entry["round"]:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(job.JobRecorder, "record", ask)
    monkeypatch.setattr(signals, "SAME_SECONDS", 1e9)
    rates = "optimizer.learning_rate=1e30,0.1"
    code, _, err = command("train", "-m", *RUN, rates, "hydra.sweep.dir=sweep")
    assert code == 143, err
    assert "asked to end (SIGTERM): nothing is saved" in err
    assert not [*(tmp_path / "sweep/0/checkpoints").glob("[0-9]*")]
    assert not (tmp_path / "sweep/1/metrics.jsonl").exists()


def test_a_terminal_that_was_closed_does_not_change_how_it_ends(
    command, monkeypatch, asked
):
    def closed(text):
        raise OSError(errno.EIO, "closed")

    monkeypatch.setattr(console, "_complain", closed)
    assert command("train", "-m", *RUN, "seed=0,1")[0] == 143


def test_of_a_job_whose_process_is_gone_too(monkeypatch, capsys):
    monkeypatch.setattr(children, "lost", [])
    monkeypatch.setattr(children, "_store", lambda *args: None)
    config = {"sweep": {"dir": "a b,c", "subdir": "0"}, "job": {}}
    loader = SimpleNamespace(
        load_sweep_config=lambda *args: OmegaConf.create({"hydra": config})
    )
    launcher = SimpleNamespace(
        config=None, hydra_context=SimpleNamespace(config_loader=loader)
    )
    children.lose(launcher, 0, [], "it was killed")
    where = shlex.quote("hydra.sweep.dir='a b,c'")
    assert f"with {where} does what is missing" in capsys.readouterr().err


@pytest.mark.parametrize("elsewhere", [False, True])
def test_one_line_says_at_once_that_a_signal_came(
    command, monkeypatch, asked, elsewhere
):
    """But not of each job that runs beside others: their sweep says that it waits."""
    told = []
    write = os.write
    monkeypatch.setattr(
        os, "write", lambda fd, x: told.append(x) if fd == 2 else write(fd, x)
    )
    monkeypatch.setattr(saving, "elsewhere", lambda hydra: elsewhere)
    assert command("train", "-m", *RUN, "seed=0,1")[0] == 143
    assert len(told) == (not elsewhere)
    assert all(line.startswith(b"parsgd: SIGTERM: ends after") for line in told)


def test_a_ctrl_c_behind_another_error_ends_the_sweep(command, monkeypatch):
    def interrupted(*args, **kwargs):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("while compiling") from error

    monkeypatch.setattr("parsgd.cli.job.build", interrupted)
    code, out, err = command("train", "-m", "seed=0,1")
    assert code == 130 and "does what is missing" in err and "#1" not in out
