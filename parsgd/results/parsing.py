"""JSON as a job's files hold it, and a look at the kinds of what is in them."""

import json
import math
from collections.abc import Mapping
from typing import Any

# Of a result; what is null or missing is taken for nothing.
KINDS: dict[str, tuple[type, str]] = {
    "reason": (str, "text"),
    "config": (dict, "an object"),
    "overrides": (list, "a list"),
    "choices": (dict, "an object"),
    "started": (str, "text"),
    "summary": (dict, "an object"),
    "final": (dict, "an object"),
    "best": (dict, "an object"),
    "versions": (dict, "an object"),
    "machine": (dict, "an object"),
}
# Of what a run was and took; the others are shown as they are.
SIZES = ("workers", "local_steps", "worker_batch", "global_batch")
NUMBERS = (
    "train_seconds",
    "samples_per_second",
    "bytes_per_round",
    "bytes",
    "bytes_dense",
    "bytes_dense_per_round",
)
MEASURED = (
    "round",
    "step",
    "samples",
    "epoch",
    "seconds",
    "batch_loss",
    "train_loss",
    "test_loss",
    "test_accuracy",
    "bytes",
    "spread",
    "learning_rate",
)


def parse(text: str) -> Any:
    """JSON, where numbers that are not finite are null, as parsgd writes them.

    Raises:
        ValueError: It is not JSON.

    Example:
        >>> parse('{"loss": NaN, "rate": 1e999, "round": 3}')
        {'loss': None, 'rate': None, 'round': 3}
    """
    return json.loads(text, parse_constant=lambda _: None, parse_float=_finite)


def wrong_in_result(record: Mapping[str, Any]) -> str:
    """What in a result is of another kind than it can be, or nothing.

    Example:
        >>> wrong_in_result({"overrides": 5, "summary": {}})
        "'overrides' is 5, not a list"
    """
    for key, (kind, name) in KINDS.items():
        value = record.get(key)
        if value is not None and not isinstance(value, kind):
            return f"{key!r} is {value!r:.40}, not {name}"
    summary = record.get("summary") or {}
    return (
        _no_size(summary)
        or _no_number(summary, NUMBERS)
        or _no_pairs(summary, "earlier_workers", int)
        or _no_pairs(summary, "earlier_settings", dict)
        or _no_pairs(summary, "earlier_placements", dict)
        or wrong_in_record(record.get("final") or {})
        or wrong_in_record(record.get("best") or {})
    )


def wrong_in_record(record: Mapping[str, Any]) -> str:
    """The same, of an evaluation.

    Example:
        >>> wrong_in_record({"round": 1, "test_accuracy": "0.9"})
        "'test_accuracy' is '0.9', not a number"
    """
    return _no_number(record, MEASURED)


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _no_number(record: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    for key in keys:
        value = record.get(key)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float)
        ):
            return f"{key!r} is {value!r:.40}, not a number"
    return ""


def _no_size(summary: Mapping[str, Any]) -> str:
    for key in SIZES:
        value = summary.get(key)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and 0 <= value < 2**63):
            return f"{key!r} is {value!r:.40}, not a size"
    return ""


def _no_pairs(summary: Mapping[str, Any], key: str, kind: type) -> str:
    value = summary.get(key)
    pairs = value if isinstance(value, list) else [value] if value else []
    if all(
        isinstance(p, list) and len(p) == 2 and isinstance(p[0], kind) for p in pairs
    ):
        return ""
    return f"{key!r} is {value!r:.40}, not a list of pairs"
