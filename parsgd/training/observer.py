"""Callbacks of a run."""

import logging
from collections.abc import Sequence
from typing import Any

from parsgd import cluster
from parsgd.errors import UserError
from parsgd.training.meter import Record
from parsgd.training.run import Run

log = logging.getLogger(__name__)


class Observer:
    """What a run tells while it goes on; override what you need."""

    def start(self, summary: dict[str, Any], lines: Sequence[str]) -> None:
        """Before the first step: sizes, placement, traffic; and lines to print."""

    def resumed(self, history: Sequence[Record]) -> None:
        """After the start, if the run goes on from a checkpoint: the records so far."""

    def progress(self, step: int, steps: int, record: Record) -> None:
        """After each dispatch: steps done, and a partial record."""

    def record(self, record: Record) -> None:
        """After each evaluation."""

    def end(self, run: Run | None) -> None:
        """At the end, however it came: what `fit` returns, or None if it failed."""

    def say(self, text: str) -> None:
        """After a record: what else there is to know, such as steps that were skipped.

        A line to print; by default a warning in the log.
        """
        if cluster.is_first():
            log.warning(text)


def check_observer(observer: Any) -> None:
    """Refuse what is not an observer, such as the class of one.

    Raises:
        UserError: Names what was given.
    """
    # By its methods: what stands before an observer and passes on is one too.
    needed = [name for name in vars(Observer) if not name.startswith("_")]
    missing = [name for name in needed if not callable(getattr(observer, name, None))]
    if isinstance(observer, type) or missing:
        given = getattr(observer, "__name__", None) or repr(observer)
        raise UserError(
            f"observer={given}: give an observer, such as parsgd.Progress() or an "
            "object of a class of your own that inherits from parsgd.Observer"
        )
