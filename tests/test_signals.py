"""Signals that a block handles, and what they do afterwards."""

import signal
import threading

import pytest

from parsgd.signals import handled, held, unwind


@pytest.fixture
def user1():
    """A signal that nobody uses, with a handler that notes it."""
    came = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append("before"))
    yield came
    signal.signal(signal.SIGUSR1, before)


def test_a_block_handles_what_it_asked_for_and_puts_back_what_was(user1):
    with handled((signal.SIGUSR1,), user1.append):
        signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    assert user1 == [signal.SIGUSR1, "before"]


def test_what_is_ignored_stays_ignored(user1):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with handled((signal.SIGUSR1,), user1.append):
        signal.raise_signal(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    assert not user1


def test_a_handler_that_python_did_not_set_becomes_the_default(user1, monkeypatch):
    monkeypatch.setattr(
        signal, "signal", lambda *_, set=signal.signal: set(*_) and None
    )
    with handled((signal.SIGUSR1,), user1.append):
        pass
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_another_thread_changes_nothing(user1):
    def work():
        with handled((signal.SIGUSR1,), user1.append):
            user1.append(signal.getsignal(signal.SIGUSR1))

    mine = signal.getsignal(signal.SIGUSR1)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert user1 == [mine]


def test_signals_that_are_held_act_once_afterwards(user1):
    with held((signal.SIGUSR1,)):
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert not user1
    assert user1 == ["before"]


def test_unwinding_runs_what_must_be_done(user1):
    with pytest.raises(SystemExit) as end:
        try:
            with handled((signal.SIGUSR1,), unwind):
                signal.raise_signal(signal.SIGUSR1)
        finally:
            user1.append("done")
    assert end.value.code == 128 + signal.SIGUSR1
    assert user1 == ["done"]
