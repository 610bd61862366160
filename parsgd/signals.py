"""Signals that a block handles, and that do afterwards what they did before."""

import contextlib
import errno
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence

SAME_SECONDS = 1.0
# What asks a process to end: from the keyboard, from a scheduler, or from submitit.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


def is_same(first: float) -> bool:
    """Whether a signal asks for no more than the first did, at a monotonic time.

    Who ends all processes at once, as a scheduler, `timeout` or a closed terminal, also
    ends those that hand it on.
    """
    return time.monotonic() - first <= SAME_SECONDS


@contextlib.contextmanager
def terminal_may_close() -> Iterator[None]:
    """Within it what is written to a terminal that was closed is lost, no more.

    Who closes one asks what runs in it to end, by SIGHUP, and that may have to save.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


@contextlib.contextmanager
def handled(
    numbers: Sequence[signal.Signals], act: Callable[[signal.Signals], object]
) -> Iterator[None]:
    """Within it these signals call ``act``.

    What the process was told to ignore, as by ``nohup``, stays ignored. Only the main
    thread may ask for signals: in another nothing changes.

    Args:
        numbers: Which signals.
        act: Gets the one that came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        del frame
        act(signal.Signals(number))

    before = {}
    try:
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
        yield
    finally:
        for number, old in before.items():
            # None: a handler that Python did not set, and cannot set again.
            signal.signal(number, signal.SIG_DFL if old is None else old)


@contextlib.contextmanager
def held(numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Within it these signals wait, so that what must be done is; then the first acts.

    What goes wrong within it goes on as it is, without the signal.

    Args:
        numbers: Which signals.
    """
    came: list[signal.Signals] = []
    with handled(numbers, came.append):
        yield
    for number in came[:1]:
        signal.raise_signal(number)


def unwind(number: signal.Signals) -> None:
    """End the process as the signal would, but by way of every ``finally``."""
    raise SystemExit(128 + number)
