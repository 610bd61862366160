"""The plain answer: which configuration wins, by how much, and how sure that is."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scipy.special import stdtrit

from parsgd.report.study import Part
from parsgd.results.export import plus_minus, seconds, size
from parsgd.results.ranking import always_reached, diverged, reached_in_all
from parsgd.words import number

ALIKE = "not told apart from it by Welch's t-test at 95 %"
SIMULATED = (
    "workers share a device in these runs, which says nothing of workers with devices "
    "of their own"
)

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
        origin = part.target.origin
        said = [f"{origin[0].upper()}{origin[1:]}, so there is no target to race to."]
        said += _caution(part)
        lowest = _least(rows, "test_loss")
        if lowest is None:
            return said
        loss = number(lowest["test_loss"]) + _ties(lowest, rows, "test_loss")
        return [*said, f"Lowest final test loss: {lowest['configuration']}, {loss}."]
    sure = [row for row in rows if always_reached(row)]
    said = [f"The target is a test accuracy of {_target(part)}."]
    said += _caution(part)
    if not sure:
        # What follows names none of those that did.
        alone = " without one that diverged" if any(map(_spoiled, rows)) else ""
        text = f"No configuration reached it in every run{alone}"
        among = _sound(rows)
        best = _most(among, "accuracy")
        if best is not None:
            text += (
                f"; the most accurate is {best['configuration']} with "
                f"{_accuracy(best)}{_ties(best, among, 'accuracy')}{_lost(best)}"
            )
        return [*said, f"{text}."]
    said += _fewest_samples(sure) if part.cost == "samples" else _soonest(sure)
    sent = [row for row in sure if row["bytes_to_target"]]
    cheapest = _least(sent, "bytes_to_target")
    if cheapest is not None:
        said.append(
            f"Fewest bytes: {cheapest['configuration']}, {_bytes(cheapest)} sent per "
            f"worker{_ties(cheapest, sent, 'bytes_to_target')}."
        )
    missed = sum(1 for r in rows if not reached_in_all(r))
    if missed:
        said.append(f"{missed} of {len(rows)} configurations missed it at least once.")
    if spoiled := sum(map(_spoiled, rows)):
        said.append(
            f"{spoiled} of {len(rows)} configurations reached it, but with a run that "
            "diverged."
        )
    winner = _least(sure, f"{part.cost}_to_target")
    if winner is not None and winner["n"] < 2 <= max(row["n"] for row in rows):
        said.append("The first has one run only: repeat it with several seeds.")
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

    def least(title: str, among: list[Row], key: str, form: Form) -> list[Tile]:
        row = _least(among, key)
        if row is None:
            return []
        note = f"reached by {row['reached']} {_runs(row)}{_ties(row, among, key)}"
        note += _within(row, among, key)
        return [Tile(f"{title} {goal}", form(row), row["configuration"], note)]

    def highest(title: str, among: list[Row], key: str, form: Form) -> list[Tile]:
        row = _most(among, key)
        if row is None:
            return []
        note = f"n = {row['n']}{_ties(row, among, key)}{_within(row, among, key)}"
        note += _lost(row) if key == "accuracy" else ""
        return [Tile(title, form(row), row["configuration"], note)]

    costs = [
        least("Soonest", sure, "seconds_to_target", _seconds),
        least("Fewest samples", sure, "samples_to_target", _samples),
    ]
    return [
        *itertools.chain(*(costs[::-1] if part.cost == "samples" else costs)),
        *least("Fewest bytes", sent, "bytes_to_target", _bytes),
        *highest("Most accurate", _sound(rows), "accuracy", _accuracy),
        *highest("Highest throughput", rows, "samples_per_second", _throughput),
    ]


def _spoiled(row: Row) -> bool:
    """Whether it would count as one that always reached, had no run diverged."""
    known = row["seconds_to_target"] is not None
    return known and reached_in_all(row) and diverged(row)


def _least(rows: Sequence[Row], key: str) -> Row | None:
    known = [row for row in rows if row[key] is not None]
    return min(known, key=lambda row: row[key], default=None)


def _most(rows: Sequence[Row], key: str) -> Row | None:
    known = [row for row in rows if row[key] is not None]
    return max(known, key=lambda row: row[key], default=None)


def _sound(rows: Sequence[Row]) -> list[Row]:
    """Those with an accuracy, without a run that diverged while there are such."""
    known = [row for row in rows if row["accuracy"] is not None]
    return [row for row in known if not diverged(row)] or known


def _lost(row: Row) -> str:
    """How many of its runs diverged, for the end of a sentence; nothing for none."""
    if not diverged(row):
        return ""
    pairs = [part.split() for part in row["status"].split(", ")]
    counts = {status: int(count) for count, status in pairs}
    return f"; {counts['diverged']} of {sum(counts.values())} diverged"


def _ties(winner: Row, rows: Sequence[Row], key: str) -> str:
    """How many others have the winner's value, for the end of a sentence."""
    values = [row[key] for row in rows if row is not winner and row[key] is not None]
    # Means of equal values in another order may differ in their last digit.
    ties = sum(math.isclose(value, winner[key]) for value in values)
    return f", and {ties} more with the same" if ties else ""


def _near(winner: Row, rows: Sequence[Row], key: str) -> list[Row]:
    """Others that the runs do not tell apart from the winner."""
    if winner.get(f"{key}_sem") is None:
        return []
    known = [row for row in rows if row is not winner and row[f"{key}_sem"] is not None]
    return [row for row in known if _alike(row, winner, key)]


def _alike(one: Row, other: Row, key: str) -> bool:
    """Whether Welch's t-test finds no difference between two means, at 95 %."""
    errors = [row[f"{key}_sem"] for row in (one, other)]
    if not any(errors):
        return one[key] == other[key]
    squares = [(error / max(errors)) ** 2 for error in errors]
    free = [max(1, _count(row, key) - 1) for row in (one, other)]
    parts = sum(s**2 / f for s, f in zip(squares, free, strict=True))
    bound = float(stdtrit(sum(squares) ** 2 / parts, 0.975))
    return abs(one[key] - other[key]) < bound * math.hypot(*errors)


def _count(row: Row, key: str) -> int:
    """How many runs a mean is of: those that reached the target, of a cost to it."""
    to_target = key.endswith("_to_target")
    return int(row["reached"].partition(" ")[0]) if to_target else row["n"]


def _within(winner: Row, rows: Sequence[Row], key: str) -> str:
    """How many others are not told apart, for the end of a note."""
    near = [
        row
        for row in _near(winner, rows, key)
        if not math.isclose(row[key], winner[key])
    ]
    return f"; {len(near)} more {ALIKE}" if near else ""


def _soonest(sure: Sequence[Row]) -> list[str]:
    winner = sure[0]
    return [
        f"Soonest: {winner['configuration']}, {_seconds(winner)} of training "
        f"({winner['reached']} {_runs(winner)})"
        f"{_ties(winner, sure, 'seconds_to_target')}.",
        *_close(winner, sure[1:]),
        *_against_one_worker(winner, sure),
    ]


def _fewest_samples(sure: Sequence[Row]) -> list[str]:
    winner = sure[0]
    said = [
        f"Fewest samples: {winner['configuration']}, {_samples(winner)} "
        f"({winner['reached']} {_runs(winner)})"
        f"{_ties(winner, sure, 'samples_to_target')}."
    ]
    alone = next((row for row in sure if row["workers"] == 1), None)
    if alone is not None and alone is not winner and winner["samples_to_target"]:
        ratio = (alone["samples_to_target"] or 0) / winner["samples_to_target"]
        said.append(
            f"The fewest with one worker, {alone['configuration']}, are "
            f"{_samples(alone)}: {number(ratio)} times as many."
        )
    return said


def _close(winner: Row, others: Sequence[Row]) -> list[str]:
    """Those whose time is not told apart from the winner's."""
    near = _near(winner, others, "seconds_to_target")
    if not near:
        return []
    named = [f"{row['configuration']} ({_seconds(row)})" for row in near[:2]]
    more = f" and {len(near) - 2} more" if len(near) > 2 else ""
    return [f"{ALIKE[0].upper()}{ALIKE[1:]}: {'; '.join(named)}{more}."]


def _against_one_worker(winner: Row, sure: Sequence[Row]) -> list[str]:
    if winner["workers"] == 1:
        shared = any(_simulated(row) for row in sure)
        more = SIMULATED if shared else "here parallel training did not pay"
        return [f"That is one worker: {more}."]
    alone = next((row for row in sure if row["workers"] == 1), None)
    if alone is None or not winner["seconds_to_target"]:
        return []
    ratio = alone["seconds_to_target"] / winner["seconds_to_target"]
    return [
        f"The soonest with one worker, {alone['configuration']}, takes "
        f"{_seconds(alone)}: {number(ratio)} times as long"
        f"{f'; {SIMULATED}' if _simulated(winner) else ''}."
    ]


def _simulated(row: Row) -> bool:
    """Whether workers shared a device."""
    places = (row["placement"] or "").split("; ")
    return any(place and not place.endswith(" x 1 lane") for place in places)


def _target(part: Part) -> str:
    return f"{part.target.value:g} ({part.target.origin})"


def _caution(part: Part) -> list[str]:
    return [f"{part.target.caution}."] if part.target.caution else []


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
