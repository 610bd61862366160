"""The jobs as the page and the figures see them: curves, fronts, what is drawn."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import polars as pl

from parsgd.report.remarks import table_notes
from parsgd.report.style import Look, looks, short, workers_of
from parsgd.results import Group, Job, Target, group, targets
from parsgd.results.groups import mean_sem
from parsgd.results.ranking import rank, sorts_of
from parsgd.results.table import table_of_groups
from parsgd.results.varied import SIZES

POINTS = 120  # of a curve; more cannot be told apart at the size of a plot


class Axis(NamedTuple):
    """A horizontal axis of the convergence plots."""

    key: str  # in metrics.jsonl
    title: str
    log: bool = False


AXES = (
    Axis("samples", "samples, all workers"),
    Axis("seconds", "training time (s)", log=True),
    Axis("round", "rounds"),
    Axis("bytes", "bytes sent per worker", log=True),
)
# The second where no accuracy was measured.
MEASURES = {"test_accuracy": "test accuracy", "test_loss": "test loss"}
UNEQUAL = 6  # times: curves whose ends are further apart share no linear axis


class Curve(NamedTuple):
    """Mean over the seeds of one configuration, evaluation by evaluation."""

    x: dict[str, list[float]]  # by axis
    y: list[float]
    sem: list[float] | None  # None for a single run
    status: str


class Entry(NamedTuple):
    """One configuration with its row of the table, its look and its curve."""

    group: Group
    row: dict[str, Any]
    look: Look
    curve: Curve | None


class Part(NamedTuple):
    """The configurations of one task; accuracies of two tasks do not compare."""

    task: str
    target: Target
    measure: str  # a key of MEASURES
    cost: str  # that the answer goes by: seconds, or samples where runs are too short
    entries: list[Entry]  # the least cost to the target first


class Study(NamedTuple):
    """Everything that a report tells."""

    jobs: list[Job]
    table: pl.DataFrame
    sorts: dict[str, str]  # what the table is sorted by, of each task
    short: list[str]  # tasks sorted by samples because their runs are short
    parts: list[Part]
    notes: list[str]  # below the table


def study(
    jobs: Iterable[Job], target: float | None = None, sort: str | None = None
) -> Study:
    """Group, tabulate and summarise the jobs.

    Args:
        jobs: As `parsgd.results.load` returns them.
        target: As for `parsgd.results.targets`.
        sort: Of the table, as for `parsgd.results.table`. What is drawn and told goes
            by samples if the table does, and by seconds else.
    """
    jobs = list(jobs)
    groups = group(jobs)
    goals = targets(groups, target)
    sorts = sorts_of(groups, sort)
    short = [t for t, by in sorts.items() if by == "samples" and sort is None]
    rows = table_of_groups(groups, goals, sorts=None).iter_rows(named=True)
    made = list(zip(groups, rows, looks(groups), strict=True))
    parts = []
    for task, goal in sorted(goals.items()):
        cost = "samples" if sorts[task] == "samples" else "seconds"
        own = [item for item in made if item[0].task == task]
        own.sort(key=lambda item: rank(item[1], cost))
        measure = _measure([g for g, _, _ in own])
        entries = [Entry(g, row, look, curve(g, measure)) for g, row, look in own]
        parts.append(Part(task, goal, measure, cost, entries))
    table = table_of_groups(groups, goals, sorts)
    notes = table_notes(table, groups, goals, sorts, sort)
    return Study(jobs, table, sorts, short, parts, notes)


def curve(group: Group, measure: str) -> Curve | None:
    """The mean curve of a configuration, at the evaluations that all its runs have.

    Completed runs are used; where there is none, those that diverged or were
    interrupted show how far they came. None where nothing was measured. Lines that do
    not say of which round they are have no place in it.
    """
    jobs = group.with_status("completed")
    jobs = jobs or group.with_status("diverged", "interrupted")
    by_round = [
        {
            line["round"]: line
            for line in job.metrics
            if line.get(measure) is not None and line.get("round") is not None
        }
        for job in jobs
    ]
    by_round = [lines for lines in by_round if lines]
    if not by_round:
        return None
    shared = sorted(set.intersection(*(set(lines) for lines in by_round)))
    shared = _thinned(shared)
    stats = [mean_sem([float(lines[r][measure]) for lines in by_round]) for r in shared]
    if not stats:
        return None
    return Curve(
        x={
            axis.key: [
                mean_sem([float(lines[r].get(axis.key) or 0) for lines in by_round])[0]
                or 0.0
                for r in shared
            ]
            for axis in AXES
        },
        y=[mean for mean, _ in stats if mean is not None],
        sem=[sem or 0.0 for _, sem in stats] if len(by_round) > 1 else None,
        status=jobs[0].status,
    )


def axes_of(entries: Sequence[Entry]) -> list[Axis]:
    """The axes for these curves: logarithmic where some end long before others."""

    def fitted(axis: Axis) -> Axis:
        ends = [e.curve.x[axis.key][-1] for e in entries if e.curve]
        ends = [end for end in ends if end > 0]
        unequal = max(ends, default=0) > UNEQUAL * min(ends, default=0)
        return axis._replace(log=axis.log or unequal)

    return [fitted(axis) for axis in AXES]


def narrow(entries: Sequence[Entry], key: str) -> bool:
    """Whether they span so little that powers of ten would label next to nothing."""
    values = [x for e in entries if e.curve for x in e.curve.x[key] if x > 0]
    return max(values) / min(values) < 1000


def drawn(entries: Sequence[Entry], limit: int) -> list[Entry]:
    """At most ``limit`` entries with a curve, the least cost to the target first.

    Completed runs hide the others. The best of each strategy and worker count comes
    first, then the next best overall.
    """
    curved = curves_of(entries)
    if len(curved) <= limit:
        return curved
    seen: set[tuple[str, int]] = set()
    first, rest = [], []
    for entry in curved:
        kind = entry.group.strategy, workers_of(entry.group)
        (rest if kind in seen else first).append(entry)
        seen.add(kind)
    chosen = {id(e) for e in [*first, *rest][:limit]}
    return [e for e in curved if id(e) in chosen]


def curves_of(entries: Sequence[Entry]) -> list[Entry]:
    """Entries with a curve: of completed runs, or of any where none completed."""
    curved = [e for e in entries if e.curve is not None]
    whole = [e for e in curved if e.curve and e.curve.status == "completed"]
    return whole or curved


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other matches in both, less x and more y.

    A point is left out if another is at least as good in both and better in one; of
    equal points the first stays.

    Example:
        >>> front([(1.0, 0.5), (2.0, 0.4), (3.0, 0.9)])
        [0, 2]
    """
    best, kept = float("-inf"), []
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    for i in order:
        if points[i][1] > best:
            best = points[i][1]
            kept.append(i)
    return kept


def accuracy_range(
    entries: Sequence[Entry], target: float | None
) -> tuple[float, float]:
    """The part of an accuracy axis that is worth reading: near the top.

    It starts at the lowest accuracy after the first interval, but no more than six
    times the error of the target away from 1, and holds the target and the best.
    """
    curves = [e.curve for e in entries if e.curve]
    best = max(max(curve.y) for curve in curves)
    low = min((c.y[1] for c in curves if len(c.y) > 2), default=0.0) - 0.02
    if target is not None:
        low = max(low, 1 - 6 * (1 - target))
    low = max(0.0, min(low, best - 0.1))
    top = max(best, target or 0.0)
    return low, top + 0.04 * (top - low) + 1e-3


def scaling_lines(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Entries with a throughput, as lines over the worker count, by name.

    None where all have the same worker count.
    """
    timed = [e for e in entries if e.row["samples_per_second"] is not None]
    if len({workers_of(e.group) for e in timed}) < 2:
        return {}
    own = _own_of_workers(timed)
    for keys in ((), ("local_steps",), ("local_steps", "global_batch")):
        lines: dict[tuple[str, ...], list[Entry]] = {}
        for entry in timed:
            g = entry.group
            named = [
                f"{k}={v}" for k, v in g.varied.items() if k in own and v is not None
            ]
            named += [f"{SIZES[key]}={g.setting(key)}" for key in keys]
            lines.setdefault((g.strategy, *named), []).append(entry)
        sizes = [[workers_of(e.group) for e in line] for line in lines.values()]
        if all(len(set(line)) == len(line) for line in sizes):
            break  # one point per worker count
    details = short([named for _, *named in lines])
    return {
        ", ".join(filter(None, [strategy, detail])): sorted(
            line, key=lambda e: workers_of(e.group)
        )
        for ((strategy, *_), line), detail in zip(lines.items(), details, strict=True)
    }


def _own_of_workers(entries: Sequence[Entry]) -> list[str]:
    """Varied settings that do not follow from the workers, as a schedule's length may.

    A setting follows if entries with equal workers, strategy and settings before it
    have but one value of it.
    """
    own: list[str] = []
    for key in dict.fromkeys(key for entry in entries for key in entry.group.varied):
        values: dict[tuple[Any, ...], set[str]] = {}
        for entry in entries:
            g = entry.group
            before = tuple(str(g.varied.get(k)) for k in own)
            place = (g.strategy, workers_of(g), before)
            values.setdefault(place, set()).add(str(g.varied.get(key)))
        if any(len(some) > 1 for some in values.values()):
            own.append(key)
    return own


def _measure(groups: Sequence[Group]) -> str:
    lines = (line for g in groups for job in g.jobs for line in job.metrics)
    known = any(line.get("test_accuracy") is not None for line in lines)
    return "test_accuracy" if known else "test_loss"


def _thinned(rounds: list[int]) -> list[int]:
    if len(rounds) <= POINTS:
        return rounds
    step = (len(rounds) - 1) / (POINTS - 1)
    return [rounds[round(i * step)] for i in range(POINTS)]
