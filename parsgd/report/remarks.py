"""What a reader of the table must know, in the words of console and page alike."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from parsgd.flat import leaves
from parsgd.results import Group, Target
from parsgd.results.export import no_spread
from parsgd.results.identity import is_seed
from parsgd.results.ranking import SHORT, describe_sort
from parsgd.results.target import reached
from parsgd.results.writing import METRICS, RESULT
from parsgd.words import counted

PAIRS = 3  # of folders, or of configurations, that are named


def table_notes(
    table: pl.DataFrame,
    groups: Sequence[Group],
    goals: Mapping[str, Target],
    sorts: Mapping[str, str],
    sort: str | None,
) -> list[str]:
    """The lines that stand below a table: what its rows are, and their order.

    Args:
        table: As it is shown.
        groups: Its configurations.
        goals: The target of each task.
        sorts: What the rows of each task are sorted by.
        sort: The same as it was asked for, or None.
    """
    lines = [no_spread(table)]
    if table.height > 1 and any(goal.value is not None for goal in goals.values()):
        orders: dict[str, list[str]] = {}
        for task, by in sorts.items():
            orders.setdefault(by, []).append(task)
        for by, tasks in orders.items():
            of = f" (of {', '.join(tasks)})" if len(orders) > 1 else ""
            lines.append(describe_sort(by) + of)
        short = orders.get("samples", ()) if sort is None else ()
        lines.append(short_runs(short, several=len(sorts) > 1))
    elif sort is not None:
        lines.append(_sort_without_target(table, sort))
    for task, goal in goals.items():
        of = f" of {task}" if len(goals) > 1 else ""
        value = "none" if goal.value is None else f"accuracy {goal.value:g}"
        lines += [f"target{of}: {value} ({goal.origin})", goal.caution]
    return [*filter(None, [*lines, *doubts(groups, goals)])]


def _sort_without_target(table: pl.DataFrame, sort: str) -> str:
    """What becomes of a sort that was asked for where there is no cost to a target."""
    if table.height < 2:
        why = "one configuration"
    elif table["accuracy"].is_null().all():
        why = "no accuracy to sort by"
    elif sort == "accuracy":
        return describe_sort(sort)
    else:
        why = "no target, so rows are sorted by accuracy"
    return f"sort={sort} changes nothing: there is {why}"


def doubts(groups: Sequence[Group], goals: Mapping[str, Target]) -> list[str]:
    """What in the rows may not be what one takes it for.

    Args:
        groups: Configurations.
        goals: The target of each task.
    """
    found = [_sends_nothing(groups), _mixed_data(groups), _mixed_places(groups)]
    found.append(_cut_short(groups))
    if len(groups) > 1 and any(goal.value is not None for goal in goals.values()):
        found += [_resolution(groups), _fell_back(groups, goals)]
    return [*filter(None, found)]


def _sends_nothing(groups: Sequence[Group]) -> str:
    """Rows whose workers never hear of each other."""
    found = [
        group.label
        for group in groups
        if (done := group.with_status("completed"))
        and (group.setting("workers") or 1) > 1
        and all(job.summary.get("bytes") == 0 for job in done)
    ]
    if not found:
        return ""
    return (
        f"{_named(found)}: nothing is sent: each worker trains alone, and only their "
        "average is evaluated"
    )


def _cut_short(groups: Sequence[Group]) -> str:
    """Jobs whose records do not reach to their result."""
    cut = [
        job.folder
        for group in groups
        for job in group.with_status("completed")
        if (end := (job.final or {}).get("round")) is not None
        and not any(line.get("round") == end for line in job.metrics)
    ]
    if not cut:
        return ""
    return (
        f"{counted(len(cut), 'job')} completed, but {METRICS} lacks the end, as in "
        f"{cut[0]}: no curve and no target counts what is missing. Remove {RESULT} "
        "there to run it again"
    )


def _mixed_data(groups: Sequence[Group]) -> str:
    """Rows that average runs on different data, where no seed of the task says so."""
    found = []
    for group in groups:
        sums = {job.summary.get("data_checksum") for job in group.jobs} - {None}
        keys = leaves({"task": group.jobs[0].config.get("task")})
        seeded = any(is_seed(key) for key in keys)
        if len(sums) > 1 and not seeded:
            found.append(group.label)
    if not found:
        return ""
    return (
        f"{_named(found)}: a mean over runs on different data (their checksums "
        "differ). If that is not meant, tell what differs (in a script "
        "parsgd.Recorder(..., config={...}))"
    )


def _mixed_places(groups: Sequence[Group]) -> str:
    """Rows that average runs of different versions or machines."""
    found = []
    for group in groups:
        places = [
            job.versions | {key: job.machine.get(key) for key in ("cpu", "cores")}
            for job in group.with_status("completed")
        ]
        # Earlier results do not tell of all.
        known = set.intersection(*({*place} for place in places)) if places else ()
        told = [{p[key] for p in places} for key in known]
        if any(len(values) > 1 and None not in values for values in told):
            found.append(group.label)
    if not found:
        return ""
    return (
        f"{_named(found)}: a mean over runs of different versions or machines, of "
        "which times do not compare"
    )


def _fell_back(groups: Sequence[Group], goals: Mapping[str, Target]) -> str:
    """Rows that reached the target, and ended below it."""
    found = []
    for group in groups:
        goal = goals[group.task].value
        done = group.with_status("completed")
        if goal is None or not all(reached(job, goal) for job in done):
            continue
        ends = [(job.final or {}).get("test_accuracy") for job in done]
        known = [x for x in ends if x is not None]
        if known and (end := sum(known) / len(known)) < goal:
            found.append(f"{group.label} ({end:.4f})")
    return f"reached the target and ended below it: {_named(found)}" if found else ""


def _resolution(groups: Sequence[Group]) -> str:
    """How finely samples to a target are known: evaluations lie apart."""
    widest = []
    for group in groups:
        for job in group.with_status("completed"):
            seen = [line.get("samples") for line in job.metrics]
            known = [x for x in seen if x is not None]
            gaps = [b - a for a, b in itertools.pairwise(known)]
            widest += [round(max(gaps))] if gaps else []
    if not widest:
        return ""
    each = " to ".join(f"{x:,}" for x in dict.fromkeys((min(widest), max(widest))))
    apart = f"evaluations lie at most {each} samples apart"
    return f"{apart}: less is not resolved"


def _named(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - PAIRS} more" if len(labels) > PAIRS else ""
    return "; ".join(labels[:PAIRS]) + more


def set_aside(groups: Sequence[Group]) -> str:
    """Which jobs do not count, and what to do about it; nothing where all count."""
    pairs = [pair for group in groups for pair in group.aside]
    if not pairs:
        return ""
    named = [f"{job.folder} = {counts.folder}" for job, counts in pairs[:PAIRS]]
    more = f" and {len(pairs) - PAIRS} more" if len(pairs) > PAIRS else ""
    return (
        f"{counted(len(pairs), 'job')} set aside: {', '.join(named)}{more}. Jobs with "
        "the same configuration and seed count once, the latest, and a completed one "
        "before others. If they differ, tell what differs (in a script "
        "parsgd.Recorder(..., config={...}))."
    )


def short_runs(tasks: Iterable[str], *, several: bool) -> str:
    """Why rows are sorted by samples; nothing where no task's are.

    Args:
        tasks: Those that are sorted by samples because their runs are short.
        several: Whether there are other tasks, so that these must be named.
    """
    named = ", ".join(tasks)
    if not named:
        return ""
    return (
        f"runs of less than {SHORT:g} s{f' (of {named})' if several else ''} say "
        "little about time: sorted by samples; sort=seconds sorts by time"
    )
