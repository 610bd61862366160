"""What an interface carries while a run trains, beside what the program counts.

Interfaces carry more than training: processes find each other, agree on what is to be
done, exchange parameters for an evaluation. So each process reads its interface around
every dispatch of training, and adds up. The first dispatch is left out, for before it
the program is compiled and a round is rehearsed.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from parsgd.lab import gloo
from parsgd.lab.counters import Counters
from parsgd.training.meter import Record

QUIET_SECONDS = 0.005
MOST_SECONDS = 2.0  # to wait until all is sent


class Wire:
    """An observer of `parsgd.fit` that reads counters, and passes on what it is told.

    Args:
        inner: The observer that it stands before.
        read: Reads the counters.

    Attributes:
        carried: While the run trained, from the second dispatch on.
        counted: Bytes of the same rounds and one worker, by the program.
        calls: Collectives of a round, by their usual names; of several programs that
            of the one which most rounds run.
        rounds: How many these are.
        dispatches: In how many parts they were run.
        seconds: How long they took.
        workers: W.
        parameters: Numbers in a worker's model.
    """

    def __init__(self, inner: Any, read: Callable[[], Counters]):
        self._inner, self._read = inner, read
        self._last: Counters | None = None
        self._first: Record | None = None
        self.carried = Counters(0, 0, 0, 0)
        self.calls: dict[str, int] = {}
        self.counted = self.seconds = 0.0
        self.rounds = self.dispatches = self.workers = self.parameters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start(self, summary: dict[str, Any], lines: Sequence[str]) -> None:
        """Before the first step."""
        self.workers, self.parameters = summary["workers"], summary["parameters"]
        self.calls = summary["calls_per_round"]
        self._inner.start(summary, lines)

    def progress(self, step: int, steps: int, record: Record) -> None:
        """After a dispatch."""
        now = self._settled()
        if self._first is None:
            self._first = record
        elif self._last is not None:
            more = now.since(self._last)
            both = zip(self.carried, more, strict=True)
            self.carried = Counters(*(a + b for a, b in both))
            self.dispatches += 1
            first = self._first
            self.counted = record["bytes"] - first["bytes"]
            self.rounds = record["round"] - first["round"]
            self.seconds = record["seconds"] - first["seconds"]
        self._inner.progress(step, steps, record)
        self._last = self._read()

    def record(self, record: Record) -> None:
        """After an evaluation, whose messages are no training."""
        self._inner.record(record)
        self._last = self._read()

    def result(self) -> dict[str, Any]:
        """For a JSON file."""
        fixed = self.rounds * gloo.fixed_bytes(self.calls, self.workers)
        return {
            "workers": self.workers,
            "parameters": self.parameters,
            "rounds": self.rounds,
            "dispatches": self.dispatches,
            "seconds": self.seconds,
            "calls_per_round": self.calls,
            "counted": self.counted,
            "expected": self.counted + fixed,
            "payload": self.carried.payload,
            **self.carried._asdict(),
        }

    def _settled(self) -> Counters:
        """The counters once all that was given to the network has left."""
        end = time.monotonic() + MOST_SECONDS
        now = self._read()
        while time.monotonic() < end:
            time.sleep(QUIET_SECONDS)
            before, now = now, self._read()
            if now.payload - before.payload < 1000:  # signs of life are all that comes
                break
        return now
