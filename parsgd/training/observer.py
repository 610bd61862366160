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
    """What a run tells while it goes on; override what you need.

    Example:
        >>> import optax, parsgd
        >>> class Accuracies(parsgd.Observer):
        ...     def record(self, record):
        ...         print(record["step"], record["test_accuracy"] > 0.5)
        >>> run = parsgd.fit(
        ...     parsgd.digits(), parsgd.sync_sgd(optax.sgd(0.1, 0.9)), workers=2,
        ...     worker_batch=16, rounds=40, evaluations=1, observer=Accuracies())
        0 False
        40 True
    """

    def start(self, summary: dict[str, Any], lines: Sequence[str]) -> None:
        """Before the first step.

        Args:
            summary: Sizes, placement and traffic.
            lines: The same in words, to print, and cautions.
        """

    def resumed(self, history: Sequence[Record]) -> None:
        """After `start`, if the run goes on from a checkpoint.

        Args:
            history: The records so far.
        """

    def progress(self, step: int, steps: int, record: Record) -> None:
        """After each dispatch, which takes about a second.

        Args:
            step: Steps done.
            steps: Of the whole run.
            record: As in the history, but without an evaluation.
        """

    def record(self, record: Record) -> None:
        """After each evaluation, with the record that the history gets."""

    def end(self, run: Run | None) -> None:
        """At the end, in any case: what `fit` returns, or None if it failed."""

    def say(self, text: str) -> None:
        """After a record: what else there is to know, such as skipped steps.

        Args:
            text: A line to print; by default it becomes a warning in the log.
        """
        if cluster.is_first():
            log.warning(text)


def check_observer(observer: Any) -> None:
    """Refuse what is not an observer, such as the class of one.

    Raises:
        UserError: Names what was given.
    """
    # By its methods: an object that only forwards to an observer is one too.
    needed = [name for name in vars(Observer) if not name.startswith("_")]
    missing = [name for name in needed if not callable(getattr(observer, name, None))]
    if isinstance(observer, type) or missing:
        given = getattr(observer, "__name__", None) or repr(observer)
        raise UserError(
            f"observer={given}: give an observer, such as parsgd.Progress() or an "
            "object of a class of your own that inherits from parsgd.Observer"
        )
