"""In which order the rows of the table come."""

from typing import Any

from parsgd.errors import UserError

SORTS = {
    "seconds": "seconds_to_target",
    "samples": "samples_to_target",
    "rounds": "rounds_to_target",
    "bytes": "bytes_to_target",
    "accuracy": "accuracy",
}


def check_sort(sort: str) -> None:
    """Refuse what rows cannot be sorted by.

    Raises:
        UserError: ``sort`` is none of `SORTS`.
    """
    if sort not in SORTS:
        raise UserError(
            f"sort={sort}: rows are sorted by {', '.join(SORTS)}: choose one of these"
        )


def always_reached(row: dict[str, Any]) -> bool:
    """Whether every run of a row reached the target, and at least one completed."""
    k, _, m = (row["reached"] or "").partition(" of ")
    return row["n"] > 0 and k == m and row["seconds_to_target"] is not None


def rank(row: dict[str, Any], sort: str = "seconds") -> tuple:
    """What rows are sorted by; the least comes first.

    Args:
        row: A row of the table.
        sort: A cost to the target, or ``"accuracy"``. With a cost, configurations of
            which a run missed the target come last, the most accurate of them first.
    """
    accuracy = row["accuracy"] if row["accuracy"] is not None else -1.0
    if sort == "accuracy":
        return row["task"], -accuracy, row["configuration"]
    sure = always_reached(row)
    cost = row[SORTS[sort]] if sure else 0.0
    return row["task"], not sure, cost, -accuracy, row["configuration"]


def describe_sort(sort: str) -> str:
    """The order of the rows in words.

    Example:
        >>> describe_sort("bytes")
        'sort=bytes: by bytes to the target; rows that missed it last, by accuracy'
    """
    if sort == "accuracy":
        return "sort=accuracy: by accuracy"
    return (
        f"sort={sort}: by {sort} to the target; rows that missed it last, by accuracy"
    )
