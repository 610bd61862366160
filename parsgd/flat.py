"""Nested configs as one dict with dotted keys, and groups of such keys."""

from collections.abc import Iterable, Mapping
from typing import Any

ABSENT = "absent"  # in place of a value, where there is no such key
# How messages are shown, processes found and states saved is not part of what is run.
OWN = ("debug", "cluster")  # of one command, or even of one of its processes
UNSTORED = (*OWN, "checkpoint")

# A checksum tells only that something changed.
OTHER = {"data_checksum": "other data", "code_checksum": "other code of your own"}


def leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config as one dict; lists and empty groups are leaves.

    Example:
        >>> leaves({"workers": 4, "task": {"model": {"width": 8}, "data": {}}})
        {'workers': 4, 'task.model.width': 8, 'task.data': {}}
    """
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def under(key: str, groups: Iterable[str]) -> bool:
    """Whether a dotted key is one of these, or in one of them.

    Example:
        >>> under("task.model.width", ["task"]), under("tasks", ["task"])
        (True, False)
    """
    return any(key == group or key.startswith(f"{group}.") for group in groups)
