"""A process that is asked to end, by a signal, and what it says of that."""

import contextlib
import os
import signal
import sys
import time

from parsgd import cluster
from parsgd.signals import is_same

WAIT = (
    b"parsgd: %s: ends after the rounds that are being computed, and saves; a second "
    b"signal, a second later, does not wait for them\n"
)


class Asked:
    """Whether this process is asked to end.

    Args:
        quiet: Whether others say that a signal came.

    Attributes:
        number: The signal that asked it to, or 0.
    """

    def __init__(self, *, quiet: bool):
        self.number = 0
        self._quiet, self._when = quiet, 0.0

    def come(self, number: signal.Signals) -> None:
        """Called when the process gets such a signal; a second one ends it at once."""
        if not self.number:
            self.number, self._when = number, time.monotonic()
            if cluster.is_first() and not self._quiet:
                with contextlib.suppress(OSError):  # a terminal that was closed
                    os.write(2, WAIT % number.name.encode())  # where print may be busy
        elif not is_same(self._when):
            raise SystemExit(128 + number)


def end(number: int, kept: str) -> SystemExit:
    """Say what is kept; what to raise, with the code that a shell would report.

    Args:
        number: The signal.
        kept: In words.
    """
    if cluster.is_first():
        with contextlib.suppress(OSError):  # a terminal that was closed
            print(
                f"parsgd: asked to end ({signal.Signals(number).name}): {kept}",
                file=sys.stderr,
                flush=True,
            )
    return SystemExit(128 + number)
