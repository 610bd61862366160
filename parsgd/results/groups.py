"""Group jobs into configurations: jobs that differ only in their seed are one.

A configuration is named in the user's own words: the strategy and whatever varies
across the sweep, as in ``local_sgd, workers=4, scaling=linear``.
"""

import datetime
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from parsgd.results.identity import identity, is_seed, settings, whole
from parsgd.results.reading import Job
from parsgd.results.sizes import sizes_of
from parsgd.results.tasks import tasks_of
from parsgd.results.varied import SIZES, choice_of, value_of, varying, with_choices


class Group(NamedTuple):
    """One configuration and its jobs, one per seed."""

    task: str
    strategy: str
    traits: tuple[str, ...]  # what tells it apart besides strategy and workers
    varied: dict[str, Any]  # what varies across the sweep and has no column of its own
    jobs: tuple[Job, ...]
    aside: tuple[tuple[Job, Job], ...]  # each with the one that counts for its seed
    label: str

    def setting(self, key: str) -> int | None:
        """A size of the configuration as it ran, or as it was asked for."""
        return sizes_of(self.head).get(key)

    @property
    def head(self) -> Job:
        """The job that speaks for all: one that ran, if any did."""
        return head_of(self.jobs)

    def with_status(self, *statuses: str) -> tuple[Job, ...]:
        """The jobs that ended in one of these ways."""
        return tuple(job for job in self.jobs if job.status in statuses)


def head_of(jobs: Sequence[Job]) -> Job:
    """The first that has a summary, or else the first."""
    return next((job for job in jobs if job.summary), jobs[0])


def group(jobs: Iterable[Job]) -> list[Group]:
    """Group jobs by configuration, in the order in which the jobs come.

    Where the same configuration and seed occur more than once, a completed job wins
    over others, then the one that started last; those set aside are kept beside it.
    """
    jobs = with_choices([*jobs])
    members: dict[str, tuple[dict[str, Any], list[Job]]] = {}
    for job, config in zip(jobs, settings(jobs), strict=True):
        members.setdefault(identity(config), (config, []))[1].append(job)
    names = {id(job): name for job, name in zip(jobs, tasks_of(jobs), strict=True)}
    by_task: dict[str, list[tuple[dict[str, Any], list[Job]]]] = {}
    for config, same in members.values():
        by_task.setdefault(names[id(same[0])], []).append((config, same))
    return [
        made for task, sets in by_task.items() for made in _groups_of_task(task, sets)
    ]


def mean_sem(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard error of the mean; the error is None for fewer than two.

    Example:
        >>> mean_sem([1.0, 3.0])
        (2.0, 1.0)
        >>> mean_sem([])
        (None, None)
    """
    n = len(values)
    if not n:
        return None, None
    mean = math.fsum(values) / n
    if n == 1:
        return mean, None
    if min(values) == max(values):  # no error by rounding where there is none
        return float(values[0]), 0.0
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return mean, math.sqrt(variance / n)


def _groups_of_task(
    task: str, sets: list[tuple[dict[str, Any], list[Job]]]
) -> list[Group]:
    kept = [_one_per_seed(same) for _, same in sets]
    heads = [head_of(jobs) for jobs, _ in kept]
    configs = [config for config, _ in sets]
    keys = varying(heads, configs)
    both = list(zip(heads, configs, strict=True))
    columns = {
        # A seed that follows the run's own has no value for all of its jobs.
        key: _spelled_alike(
            value_of(head, key) if key in config or not is_seed(key) else None
            for head, config in both
        )
        for key in keys
    }
    made = [
        Group(
            task=task,
            strategy=choice_of(head, "strategy"),
            traits=(),
            varied={key: column[i] for key, column in columns.items()},
            jobs=jobs,
            aside=aside,
            label="",
        )
        for i, (head, (jobs, aside)) in enumerate(zip(heads, kept, strict=True))
    ]
    return _labelled(made)


def _spelled_alike(values: Iterable[Any]) -> list[Any]:
    """Whole numbers without a point, if one of the values is spelled so."""
    values = list(values)
    if not any(type(value) is int for value in values):
        return values
    return [whole(x) for x in values]


def _labelled(groups: list[Group]) -> list[Group]:
    """Name each group by its strategy, its workers and what else tells it apart.

    A size that follows from what is named already (the global batch from the workers
    at a fixed worker batch, say) is left out.
    """
    names = [[g.strategy] for g in groups]
    parts = [
        [(SIZES.get(key, key), get(g)) for g in groups]
        for key, get in _namers(groups[0].varied)
    ]
    for part in parts:
        longer = [
            name if value is None else [*name, f"{key}={value}"]
            for name, (key, value) in zip(names, part, strict=True)
        ]
        if len(set(map(tuple, longer))) > len(set(map(tuple, names))):
            names = longer
    workers = f"{SIZES['workers']}="
    return [
        g._replace(
            label=", ".join(name),
            traits=tuple(text for text in name[1:] if not text.startswith(workers)),
        )
        for g, name in zip(groups, names, strict=True)
    ]


def _namers(varied: Iterable[str]) -> list[tuple[str, Callable[[Group], Any]]]:
    def size(key: str) -> Callable[[Group], Any]:
        def of(g: Group) -> Any:
            known = g.setting(key)
            # What is no size tells jobs that failed apart.
            return g.head.config.get(key) if known is None else known

        return of

    def choice(key: str) -> Callable[[Group], Any]:
        return lambda g: g.varied[key]

    first, *others = SIZES
    return [
        (first, size(first)),
        *((key, choice(key)) for key in varied),
        *((key, size(key)) for key in others),
    ]


def _one_per_seed(
    jobs: list[Job],
) -> tuple[tuple[Job, ...], tuple[tuple[Job, Job], ...]]:
    """The jobs that count, and each of the others with the one that counts for it."""
    latest: dict[str, Job] = {}
    order = sorted(jobs, key=lambda job: (job.status == "completed", _started(job)))
    for job in order:
        latest[str(job.config.get("seed"))] = job
    pairs = [(job, latest[str(job.config.get("seed"))]) for job in jobs]
    return (
        tuple(job for job, counted in pairs if job is counted),
        tuple((job, counted) for job, counted in pairs if job is not counted),
    )


def _started(job: Job) -> float:
    """Seconds of the clock at which a job began; clocks may stand in other zones."""
    try:
        return datetime.datetime.fromisoformat(job.started or "").timestamp()
    except ValueError:
        return 0.0
