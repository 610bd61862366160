"""The plain answer: which configuration wins, by how much, and how sure that is."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from parsgd.report.study import Part
from parsgd.results.export import number, plus_minus, seconds, size
from parsgd.results.ranking import always_reached

Row = dict[str, Any]
Form = Callable[[Row], str]


class Tile(NamedTuple):
    """One winner: of what, with which figure, which configuration, from how many."""

    title: str
    figure: str
    configuration: str
    note: str


def sentences(part: Part) -> list[str]:
    """A paragraph that answers the question for one task, as sentences."""
    rows = [entry.row for entry in part.entries]
    if not any(row["n"] for row in rows):
        return [
            "No run completed, so there is nothing to compare; see the reasons below."
        ]
    if part.target.value is None:
        lowest = _least(rows, "test_loss")
        text = "No test accuracy was measured, so there is no target to race to."
        if lowest is None:
            return [text]
        loss = number(lowest["test_loss"])
        return [text, f"Lowest final test loss: {lowest['configuration']}, {loss}."]
    sure = [row for row in rows if always_reached(row)]
    said = [f"The target is a test accuracy of {_target(part)}."]
    said += [f"{part.target.caution}."] if part.target.caution else []
    if not sure:
        best = max(rows, key=lambda r: r["accuracy"] if r["accuracy"] else -1.0)
        said.append(
            "No configuration reached it in every run; the most accurate is "
            f"{best['configuration']} with {_accuracy(best)}."
        )
        return said
    soonest = sure[0]
    said.append(
        f"Soonest: {soonest['configuration']}, {_seconds(soonest)} of training "
        f"({soonest['reached']} {_runs(soonest)})."
    )
    said += _close(soonest, sure[1:]) + _against_one_worker(soonest, sure)
    cheapest = _least([r for r in sure if r["bytes_to_target"]], "bytes_to_target")
    if cheapest is not None:
        said.append(
            f"Fewest bytes: {cheapest['configuration']}, "
            f"{_bytes(cheapest)} sent per worker."
        )
    missed = sum(1 for r in rows if r["reached"] and not always_reached(r))
    if missed:
        said.append(f"{missed} of {len(rows)} configurations missed it at least once.")
    if max(row["n"] for row in rows) < 2:
        said.append(
            "There is one run of each: small differences may be chance, so repeat "
            "with several seeds."
        )
    return said


def tiles(part: Part) -> list[Tile]:
    """The winner of each cost to the target, of accuracy and of throughput."""
    rows = [entry.row for entry in part.entries if entry.row["n"]]
    sure = [row for row in rows if always_reached(row)]
    sent = [row for row in sure if row["bytes_to_target"]]
    goal = f"to {part.target.value:g}" if part.target.value else ""

    def reached(row: Row) -> str:
        return f"reached by {row['reached']} {_runs(row)}"

    def over(row: Row) -> str:
        return f"n = {row['n']}"

    def best(title: str, among: list[Row], key: str, form: Form, note: Form):
        row = _least(among, key)
        return [Tile(title, form(row), row["configuration"], note(row))] if row else []

    def highest(title: str, key: str, form: Form):
        known = [row for row in rows if row[key] is not None]
        row = max(known, key=lambda row: row[key], default=None)
        return [Tile(title, form(row), row["configuration"], over(row))] if row else []

    return [
        *best(f"Soonest {goal}", sure, "seconds_to_target", _seconds, reached),
        *best(f"Fewest samples {goal}", sure, "samples_to_target", _samples, reached),
        *best(f"Fewest bytes {goal}", sent, "bytes_to_target", _bytes, reached),
        *highest("Most accurate", "accuracy", _accuracy),
        *highest("Highest throughput", "samples_per_second", _throughput),
    ]


def _least(rows: Sequence[Row], key: str) -> Row | None:
    known = [row for row in rows if row[key] is not None]
    return min(known, key=lambda row: row[key], default=None)


def _close(winner: Row, others: Sequence[Row]) -> list[str]:
    """Those whose time differs from the winner's by less than two standard errors."""
    if winner["seconds_to_target_sem"] is None:
        return []
    near = []
    for row in others:
        sem = row["seconds_to_target_sem"]
        apart = row["seconds_to_target"] - winner["seconds_to_target"]
        if sem is not None and apart < 2 * math.hypot(
            sem, winner["seconds_to_target_sem"]
        ):
            near.append(row)
    if not near:
        return []
    named = [f"{row['configuration']} ({_seconds(row)})" for row in near[:2]]
    more = f" and {len(near) - 2} more" if len(near) > 2 else ""
    return [
        f"Not told apart from it, within two standard errors: {'; '.join(named)}{more}."
    ]


def _against_one_worker(winner: Row, sure: Sequence[Row]) -> list[str]:
    if winner["workers"] == 1:
        return ["That is one worker: here parallel training did not pay."]
    alone = next((row for row in sure if row["workers"] == 1), None)
    if alone is None or not winner["seconds_to_target"]:
        return []
    ratio = alone["seconds_to_target"] / winner["seconds_to_target"]
    return [
        f"The soonest with one worker, {alone['configuration']}, takes "
        f"{_seconds(alone)}: {ratio:.2g} times as long."
    ]


def _target(part: Part) -> str:
    return f"{part.target.value:g} ({part.target.origin})"


def _seconds(row: Row) -> str:
    return seconds(row["seconds_to_target"], row["seconds_to_target_sem"]) + " s"


def _accuracy(row: Row) -> str:
    return plus_minus(row["accuracy"], row["accuracy_sem"])


def _samples(row: Row) -> str:
    return number(row["samples_to_target"])


def _bytes(row: Row) -> str:
    return size(row["bytes_to_target"])


def _throughput(row: Row) -> str:
    return f"{number(row['samples_per_second'])} samples/s"


def _runs(row: Row) -> str:
    return "run" if row["reached"].endswith(" of 1") else "runs"
