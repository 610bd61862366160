"""In which order the rows of the table come."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from parsgd.errors import UserError
from parsgd.results.groups import Group

SORTS = {
    "seconds": "seconds_to_target",
    "samples": "samples_to_target",
    "rounds": "rounds_to_target",
    "bytes": "bytes_to_target",
    "accuracy": "accuracy",
}
SHORT = 1.0  # s of training; shorter runs tell the clock and the start, not the method


def sorts_of(groups: Sequence[Group], sort: str | None = None) -> dict[str, str]:
    """What the rows of each task are sorted by.

    Args:
        groups: Configurations, of one task or several.
        sort: As asked for. Without it, the seconds to the target, or the samples where
            half of the task's completed runs trained for less than a second.

    Raises:
        UserError: ``sort`` is not one of `SORTS`.
    """
    if sort is not None and sort not in SORTS:
        raise UserError(
            f"sort={sort}: rows are sorted by {', '.join(SORTS)}: choose one of these"
        )
    trained: dict[str, list[float]] = {}
    for group in groups:
        known = trained.setdefault(group.task, [])
        for job in group.with_status("completed"):
            if job.summary.get("train_seconds") is not None:
                known.append(job.summary["train_seconds"])
    return {
        task: sort or ("samples" if known and median(known) < SHORT else "seconds")
        for task, known in trained.items()
    }


def always_reached(row: dict[str, Any]) -> bool:
    """Whether every run of a row reached the target, and none diverged.

    What a run reached that diverged later is not kept: its cost buys nothing.
    """
    known = row["n"] > 0 and row["seconds_to_target"] is not None
    return known and reached_in_all(row) and not diverged(row)


def diverged(row: dict[str, Any]) -> bool:
    """Whether a run of a row diverged."""
    return "diverged" in (row["status"] or "")


def reached_in_all(row: dict[str, Any]) -> bool:
    """Whether no run of a row missed the target, such as where there is none."""
    k, _, m = (row["reached"] or "").partition(" of ")
    return k == m


def rank(row: dict[str, Any], sort: str) -> tuple:
    """What rows are sorted by; the least comes first.

    Args:
        row: A row of the table.
        sort: A cost to the target, or ``"accuracy"``. With a cost, configurations of
            which a run missed the target or diverged come last, the most accurate of
            them first, or where a task has no accuracy those of the lowest test loss.
    """
    accuracy = row["accuracy"] if row["accuracy"] is not None else -1.0
    loss = row["test_loss"] if row["test_loss"] is not None else math.inf
    if sort == "accuracy":
        return row["task"], -accuracy, loss, row["configuration"]
    sure = always_reached(row)
    cost = row[SORTS[sort]] if sure else 0.0
    cost = math.inf if cost is None else cost  # in files of others
    return row["task"], not sure, cost, -accuracy, loss, row["configuration"]


def describe_sort(sort: str) -> str:
    """The order of the rows in words.

    Example:
        >>> describe_sort("bytes")
        'sort=bytes: by bytes to the target; rows with a miss last, by accuracy'
    """
    if sort == "accuracy":
        return "sort=accuracy: by accuracy"
    return f"sort={sort}: by {sort} to the target; rows with a miss last, by accuracy"
