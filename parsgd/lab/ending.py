"""Signals that end a lab: the first one does, and none while links are made or removed.

An exception at any other place would be too early or too late: a command that has just
been started makes its namespace after all others were removed.
"""

import contextlib
import signal
from collections.abc import Iterator

from parsgd.signals import ENDING, handled, unwind


class First:
    """Lets the first signal act as it would, once nothing must be done before.

    Attributes:
        waits: Whether a signal has to wait.
    """

    def __init__(self) -> None:
        self.waits = True
        self.number: signal.Signals | None = None
        self._acted = False
        self._before = {number: signal.getsignal(number) for number in ENDING}

    def came(self, number: signal.Signals) -> None:
        """Note a signal, and act if it is the first and need not wait."""
        if self.number is None:
            self.number = number
            if not self.waits:
                self.act()

    def act(self) -> None:
        """Do what the signal that came does; nothing if none has, or it was done."""
        if self.number is None or self._acted:
            return
        self._acted = True
        before = self._before[self.number]
        if callable(before):
            before(self.number, None)
        else:
            unwind(self.number)


@contextlib.contextmanager
def first_signal() -> Iterator[First]:
    """Within it only the first of the signals that ask to end acts, when it may.

    One that waits until the end acts then, unless something goes wrong by itself.
    """
    first = First()
    with handled(ENDING, first.came):
        yield first
    first.act()
