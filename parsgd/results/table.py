"""One row per configuration: what it reached, what that cost, how it ended."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from parsgd.results.groups import Group, group, mean_sem
from parsgd.results.ranking import rank, sorts_of
from parsgd.results.reading import Job
from parsgd.results.said import placement_of
from parsgd.results.target import Target, reached, targets
from parsgd.words import counted


class Column(NamedTuple):
    """A column of the table: how a heading names it, its unit and what it means."""

    title: str
    unit: str
    dtype: type[pl.DataType]
    meaning: str


_I, _F, _S = pl.Int64, pl.Float64, pl.String
_TO = "mean over the runs that reached the target of what the first evaluation at or "
_TO += "above it had cost; nothing is interpolated between evaluations"
_SEM = "standard error of the mean; empty for fewer than two runs"
COLUMNS = {
    "strategy": Column("Strategy", "", _S, "the algorithm, as the config names it"),
    "task": Column("Task", "", _S, "the data set and loss"),
    "workers": Column("Workers", "", _I, "replicas in the algorithm, not devices"),
    "local_steps": Column(
        "Local steps", "", _I, "optimizer steps of each worker per round (H)"
    ),
    "worker_batch": Column("Worker batch", "", _I, "samples per worker and step"),
    "global_batch": Column("Global batch", "", _I, "samples of all workers per step"),
    "learning_rate": Column(
        "Learning rate", "", _F, "the base rate after batch scaling"
    ),
    "accuracy": Column(
        "Accuracy", "", _F, "final test accuracy of the readout, mean over n runs"
    ),
    "accuracy_sem": Column("Accuracy ±", "", _F, _SEM),
    "test_loss": Column(
        "Test loss",
        "",
        _F,
        "final test loss, mean over n runs; empty where that of one was not finite",
    ),
    "test_loss_sem": Column("Test loss ±", "", _F, _SEM),
    "n": Column("n", "", _I, "completed runs, one per seed, behind the means"),
    "target": Column("Target", "", _F, "the test accuracy that is raced to"),
    "seconds_to_target": Column("Time to target", "s", _F, f"training seconds; {_TO}"),
    "seconds_to_target_sem": Column("Time to target ±", "s", _F, _SEM),
    "samples_to_target": Column(
        "Samples to target", "", _F, f"samples of all workers; {_TO}"
    ),
    "samples_to_target_sem": Column("Samples to target ±", "", _F, _SEM),
    "rounds_to_target": Column(
        "Rounds to target", "", _F, f"synchronisation rounds; {_TO}"
    ),
    "rounds_to_target_sem": Column("Rounds to target ±", "", _F, _SEM),
    "bytes_to_target": Column(
        "Bytes to target", "B", _F, f"bytes sent by one worker; {_TO}"
    ),
    "bytes_to_target_sem": Column("Bytes to target ±", "B", _F, _SEM),
    "reached": Column(
        "Reached",
        "",
        _S,
        "runs that reached the target, of those completed or diverged that were "
        "evaluated",
    ),
    "train_seconds": Column(
        "Training time", "s", _F, "whole run without compilation and evaluation"
    ),
    "samples_per_second": Column(
        "Throughput", "samples/s", _F, "training samples of all workers per second"
    ),
    "bytes_per_round": Column(
        "Bytes per round", "B", _F, "sent by one worker per round of the longest phase"
    ),
    "dense_over_sent": Column(
        "Dense/sent",
        "×",
        _F,
        "bytes of an all-reduce of the gradients every step, over the bytes sent, in "
        "the whole run",
    ),
    "spread": Column(
        "Spread",
        "",
        _F,
        "rms distance of the workers' parameters to their mean before the last "
        "synchronisation, over the norm of the mean; mean over n runs",
    ),
    "placement": Column(
        "Placement",
        "",
        _S,
        "devices, and workers on each of them at once (lanes): those that share a "
        "device are simulated; empty where not recorded",
    ),
    "status": Column("Status", "", _S, "how the runs ended"),
    "reason": Column("Reason", "", _S, "why a run did not complete"),
    "configuration": Column("Configuration", "", _S, "strategy and what varies"),
    "folders": Column("Folders", "", _S, "where the runs' files are"),
}


def table(
    jobs: Iterable[Job], target: float | None = None, sort: str | None = None
) -> pl.DataFrame:
    """One row per configuration; jobs that differ only in ``seed`` are its runs.

    The columns are those of `COLUMNS`, with what varies across the sweep after
    ``task``. Rows come by task; those that always reach the target and never diverge
    first, by what that cost (see ``sort``); then by accuracy.

    Args:
        jobs: As `load` returns them.
        target: Test accuracy to race to; see `targets` for the default.
        sort: The cost to the target that rows are sorted by: ``"seconds"``,
            ``"samples"``, ``"rounds"`` or ``"bytes"``; or by ``"accuracy"`` alone.
            By default seconds, or samples where runs are shorter than a second, which
            says little about time.

    Raises:
        UserError: The target is not in (0, 1], or ``sort`` is unknown.
    """
    groups = group(jobs)
    return table_of_groups(groups, targets(groups, target), sorts_of(groups, sort))


def table_of_groups(
    groups: Sequence[Group],
    goals: Mapping[str, Target],
    sorts: Mapping[str, str] | None,
) -> pl.DataFrame:
    """`table`, for jobs that are grouped already; ``sorts=None`` keeps their order."""
    own = [_row(g, goals[g.task].value) for g in groups]
    varied = [
        key
        for key in dict.fromkeys(key for g in groups for key in g.varied)
        if not _is_column(key, groups, own)
    ]
    # A varied key may spell like a column or its title: the column keeps its name.
    taken = {*COLUMNS}
    for column in COLUMNS.values():
        taken |= {column.title, f"{column.title} ({column.unit})"}
    names: dict[str, str] = {}
    for key in varied:
        names[key] = key
        while names[key] in taken:
            names[key] += " (varied)"
        taken.add(names[key])
    rows: list[dict[str, Any]] = [
        row | {names[key]: g.varied.get(key) for key in varied}
        for g, row in zip(groups, own, strict=True)
    ]
    if sorts is not None:
        rows.sort(key=lambda row: rank(row, sorts[row["task"]]))
    head, tail = list(COLUMNS)[:2], list(COLUMNS)[2:]
    series = [pl.Series(k, [r[k] for r in rows], COLUMNS[k].dtype) for k in head]
    series += [_series(name, [r[name] for r in rows]) for name in names.values()]
    series += [pl.Series(k, [r[k] for r in rows], COLUMNS[k].dtype) for k in tail]
    return pl.DataFrame(series)


def _is_column(key: str, groups: Sequence[Group], rows: Sequence[dict]) -> bool:
    """Whether a column has what a varied key says, as a script's learning rate."""
    said = [
        (g.varied.get(key), row.get(key)) for g, row in zip(groups, rows, strict=True)
    ]
    return key in COLUMNS and all(value in (None, known) for value, known in said)


def _row(g: Group, target: float | None) -> dict[str, Any]:
    done = g.with_status("completed")
    # Of a run without evaluations nobody knows whether it reached the target.
    judged = [job for job in g.with_status("completed", "diverged") if job.metrics]
    finals = [job.final or {} for job in done]
    hits = [line for job in judged if (line := reached(job, target)) is not None]
    accuracy, accuracy_sem = mean_sem(_known(finals, "test_accuracy"))
    seconds, seconds_sem = mean_sem(_known(hits, "seconds"))
    samples, samples_sem = mean_sem(_known(hits, "samples"))
    rounds, rounds_sem = mean_sem(_known(hits, "round"))
    size, size_sem = mean_sem(_known(hits, "bytes"))
    losses = _known(finals, "test_loss")
    # Of fewer runs it would be no mean over n, and the worst would be left out.
    loss, loss_sem = mean_sem(losses if len(losses) == len(done) else [])
    summaries = [job.summary for job in done]
    return {
        "strategy": g.strategy,
        "task": g.task,
        **{key: g.setting(key) for key in list(COLUMNS)[2:6]},
        "learning_rate": _learning_rate(g),
        "accuracy": accuracy,
        "accuracy_sem": accuracy_sem,
        "test_loss": loss,
        "test_loss_sem": loss_sem,
        "n": len(done),
        "target": target,
        "seconds_to_target": seconds,
        "seconds_to_target_sem": seconds_sem,
        "samples_to_target": samples,
        "samples_to_target_sem": samples_sem,
        "rounds_to_target": rounds,
        "rounds_to_target_sem": rounds_sem,
        "bytes_to_target": size,
        "bytes_to_target_sem": size_sem,
        "reached": f"{len(hits)} of {len(judged)}" if judged and target else None,
        "train_seconds": mean_sem(_known(summaries, "train_seconds"))[0],
        "samples_per_second": mean_sem(_known(summaries, "samples_per_second"))[0],
        "bytes_per_round": mean_sem(_known(summaries, "bytes_per_round"))[0],
        "dense_over_sent": mean_sem(list(filter(None, map(_ratio, summaries))))[0],
        "spread": mean_sem(_known(finals, "spread"))[0],
        "placement": _placement(g.jobs),
        "status": _status(g.jobs),
        "reason": "; ".join(dict.fromkeys(j.reason for j in g.jobs if j.reason))
        or None,
        "configuration": g.label,
        "folders": "; ".join(str(job.folder) for job in g.jobs),
    }


def _learning_rate(g: Group) -> float | None:
    rates = [job.summary.get("learning_rate") for job in g.jobs]
    rates.append(g.jobs[0].config.get("learning_rate"))
    rate = next((x for x in rates if x is not None), None)
    return float(rate) if isinstance(rate, int | float) else None


def _placement(jobs: Sequence[Job]) -> str | None:
    places = [placement_of(job) for job in jobs]
    sizes = [(place.get("devices"), place.get("lanes")) for place in places]
    said = [
        f"{counted(devices, 'device')} x {counted(lanes, 'lane')}"
        for devices, lanes in sizes
        if isinstance(devices, int) and isinstance(lanes, int)
    ]
    return "; ".join(dict.fromkeys(said)) or None


def _ratio(summary: Mapping[str, Any]) -> float | None:
    """Dense bytes over those sent; earlier results have those of a round only."""
    for dense, sent in (
        ("bytes_dense", "bytes"),
        ("bytes_dense_per_round", "bytes_per_round"),
    ):
        if summary.get(dense) is not None and summary.get(sent):
            return summary[dense] / summary[sent]
    return None


def _known(records: Iterable[dict[str, Any]], key: str) -> list[float]:
    return [float(r[key]) for r in records if r.get(key) is not None]


def _status(jobs: Sequence[Job]) -> str:
    counts = Counter(job.status for job in jobs)
    if len(counts) == 1:
        return jobs[0].status
    return ", ".join(f"{n} {status}" for status, n in counts.items())


def _series(name: str, values: list[Any]) -> pl.Series:
    known = [v for v in values if v is not None]
    if known and all(isinstance(v, bool) for v in known):
        return pl.Series(name, values, pl.Boolean)
    words = any(isinstance(v, str | bool) for v in known) or not known
    # No type holds what is larger and keeps it whole.
    if words or any(isinstance(v, int) and abs(v) >= 2**63 for v in known):
        return pl.Series(name, [v if v is None else str(v) for v in values], pl.String)
    whole = all(isinstance(v, int) for v in known)
    return pl.Series(name, values, pl.Int64 if whole else pl.Float64, strict=False)
