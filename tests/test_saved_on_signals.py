"""Runs that are asked to end: by which signals, once or twice, in which thread."""

import signal
import threading

import pytest
from resumes import (
    Watcher,
    assert_same_history,
    assert_same_state,
    fit,
    share_engines,
    steps_in,
    stored,
)
from test_checkpoint_folders import pytestmark  # noqa: F401

from parsgd import signals
from parsgd.training.engine import Engine


class Asked(Watcher):
    """Gets a signal in the first round."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def progress(self, step, steps, record):
        if not self.at:
            self.at = record["round"]
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_run_that_is_asked_to_end_saves_first(tmp_path, monkeypatch, capfd, number):
    share_engines(monkeypatch)
    whole = fit(tmp_path / "whole")
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        fit(tmp_path / "run", every=100, watcher=Asked(number))
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before
    err = capfd.readouterr().err
    assert f"round 1 is saved in {tmp_path / 'run'}; the same script goes on" in err
    assert err.count(f"{signal.Signals(number).name}: ends after the rounds") == 1
    run = fit(tmp_path / "run", every=100)
    assert_same_state(tmp_path / "run", tmp_path / "whole")
    assert_same_history(run.history, whole.history)


@pytest.mark.parametrize("at", [2, 6])
def test_a_run_that_ends_where_it_is_evaluated_keeps_the_evaluation(
    tmp_path, monkeypatch, at
):
    """It could not be added to the checkpoint of that round any more."""
    share_engines(monkeypatch)
    whole = fit(tmp_path / "whole")

    class There(Asked):
        def progress(self, step, steps, record):
            if record["round"] == at:
                signal.raise_signal(self.number)

    with pytest.raises(SystemExit):
        fit(tmp_path / "run", every=100, watcher=There(signal.SIGTERM))
    meta, _ = stored(tmp_path / "run")
    assert meta["round"] == meta["history"][-1]["round"] == at
    run = fit(tmp_path / "run", every=100)
    assert_same_state(tmp_path / "run", tmp_path / "whole")
    assert_same_history(run.history, whole.history)
    assert_same_history(stored(tmp_path / "run")[0]["history"], whole.history)


class AskedTwice(Asked):
    """Gets it twice at once, as from a scheduler and from its parent."""

    def progress(self, step, steps, record):
        first = not self.at
        super().progress(step, steps, record)
        if first:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("every", [1, 100])
def test_a_run_that_is_not_finite_is_not_said_to_be_saved(
    tmp_path, monkeypatch, capfd, every
):
    """Its state is not saved, and only what was saved before goes on."""
    at = 1 if every > 1 else 2
    finite = Engine.finite
    monkeypatch.setattr(Engine, "finite", lambda *args: asked.at < at and finite(*args))

    class Later(Asked):
        def progress(self, step, steps, record):
            self.at = record["round"]
            if self.at == at:
                signal.raise_signal(self.number)

    asked = Later(signal.SIGTERM)
    with pytest.raises(SystemExit):
        fit(tmp_path / "run", every=every, watcher=asked)
    err = capfd.readouterr().err
    if every > 1:
        assert "nothing is saved in" in err and "goes on" not in err
    else:
        assert "round 1, not 2, which is not finite, is saved in" in err
        assert "the same script goes on" in err
    assert steps_in(tmp_path / "run") == [3] * (every == 1)


@pytest.mark.parametrize("apart, saved", [(False, True), (True, False)])
def test_a_second_signal_ends_at_once_unless_it_is_the_same(
    tmp_path, monkeypatch, apart, saved
):
    share_engines(monkeypatch)
    monkeypatch.setattr(signals, "SAME_SECONDS", -1.0 if apart else 1e9)
    with pytest.raises(SystemExit):
        fit(tmp_path / "run", every=100, watcher=AskedTwice(signal.SIGTERM))
    assert bool(steps_in(tmp_path / "run")) == saved


def test_runs_outside_the_main_thread_save_too(tmp_path, monkeypatch):
    share_engines(monkeypatch)
    thread = threading.Thread(target=fit, args=(tmp_path / "a",))
    thread.start()
    thread.join()
    assert steps_in(tmp_path / "a") == [15, 18]
