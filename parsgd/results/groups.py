"""Group jobs into configurations: jobs that differ only in their seed are one.

A configuration is named in the user's own words: the strategy and whatever varies
across the sweep, as in ``local_sgd, workers=4, scaling=linear``.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from parsgd.flat import UNSTORED, leaves, under
from parsgd.results.reading import Job

# Settings with a column of their own, and how a label spells them.
SIZES = {"workers": "workers", "local_steps": "H", "global_batch": "batch"}
_OWN = {"seed", "strategy", "task", "worker_batch", *SIZES}
RESUMED = "resumed"  # what a run is said to be whose number of workers has changed
PROCESSES = "processes"  # of runs of several: their seconds are of another kind
SAID = (RESUMED, PROCESSES)  # even where they tell nothing apart


class Group(NamedTuple):
    """One configuration and its jobs, one per seed."""

    task: str
    strategy: str
    traits: tuple[str, ...]  # what tells it apart besides strategy and workers
    varied: dict[str, Any]  # what varies across the sweep and has no column of its own
    jobs: tuple[Job, ...]
    repeats: int  # jobs set aside because a later one repeats their seed
    label: str

    def setting(self, key: str) -> Any:
        """A size of the configuration as it ran, or as it was asked for."""
        for job in self.jobs:
            if job.summary.get(key) is not None:
                return job.summary[key]
        return self.jobs[0].config.get(key)

    def with_status(self, *statuses: str) -> tuple[Job, ...]:
        """The jobs that ended in one of these ways."""
        return tuple(job for job in self.jobs if job.status in statuses)


def group(jobs: Iterable[Job]) -> list[Group]:
    """Group jobs by configuration, in the order in which the jobs come.

    Where the same configuration and seed occur more than once, a completed job wins
    over others, then the one that started last; the number set aside is kept.
    """
    members: dict[str, list[Job]] = {}
    for job in jobs:
        members.setdefault(_identity(job), []).append(job)
    by_task: dict[str, list[list[Job]]] = {}
    for same in members.values():
        by_task.setdefault(_choice(same[0], "task"), []).append(same)
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
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return mean, math.sqrt(variance / n)


def overrides(job: Job) -> dict[str, str]:
    """The job's overrides as a dict: ``+scaling=linear`` gives scaling: linear."""
    pairs = (text.lstrip("+~").partition("=") for text in job.overrides)
    return {key: value for key, _, value in pairs}


def _groups_of_task(task: str, sets: list[list[Job]]) -> list[Group]:
    kept = [_one_per_seed(same) for same in sets]
    heads = [jobs[0] for jobs in kept]
    keys = _varying(heads)
    made = [
        Group(
            task=task,
            strategy=_choice(jobs[0], "strategy"),
            traits=(),
            varied={key: _value(jobs[0], key) for key in keys},
            jobs=jobs,
            repeats=len(same) - len(jobs),
            label="",
        )
        for same, jobs in zip(sets, kept, strict=True)
    ]
    return _labelled(made)


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
        return lambda g: g.setting(key)

    def choice(key: str) -> Callable[[Group], Any]:
        return lambda g: g.varied[key]

    first, *others = SIZES
    return [
        (first, size(first)),
        *((key, choice(key)) for key in varied),
        *((key, size(key)) for key in others),
    ]


def _identity(job: Job) -> str:
    config = {key: value for key, value in _own(job).items() if key != "seed"}
    # A config may name its own output folder, which differs for every seed.
    own = str(job.folder.resolve())
    shared = {k: v for k, v in leaves(config).items() if own not in str(v)}
    return json.dumps(shared, sort_keys=True, default=str)


def _own(job: Job) -> dict[str, Any]:
    """A job's config without what only repeats another part of it.

    A resolved config says the seed again wherever a call takes it, and what
    ``compressor`` and ``feedback`` are again inside the strategy that uses them.
    """
    config = {key: x for key, x in job.config.items() if key not in UNSTORED}
    config |= {key: x for key in SAID if (x := _said(job, key)) is not None}
    said = {"seed": config.get("seed"), "compressor": config.get("compressor")}
    if isinstance(config.get("feedback"), Mapping):
        said["reducer"] = config["feedback"]
    return {key: _unrepeated(value, said) for key, value in config.items()}


def _unrepeated(node: Any, said: Mapping[str, Any]) -> Any:
    """The node without keys of these names that have these values, at any depth.

    A list of calls, as of a chain, becomes a dict by number, so that each of their
    arguments has a key: ``feedback._args_.0.decay``.
    """
    if isinstance(node, list):
        parts = [_unrepeated(x, said) for x in node]
        nested = any(isinstance(x, Mapping) for x in parts)
        return {str(i): x for i, x in enumerate(parts)} if nested else parts
    if isinstance(node, Mapping):
        kept = {k: v for k, v in node.items() if k not in said or v != said[k]}
        return {k: _unrepeated(v, said) for k, v in kept.items()}
    return node


def _one_per_seed(jobs: list[Job]) -> tuple[Job, ...]:
    latest: dict[str, Job] = {}
    order = sorted(jobs, key=lambda j: (j.status == "completed", j.started or ""))
    for job in order:
        latest[str(job.config.get("seed"))] = job
    return tuple(job for job in jobs if latest[str(job.config.get("seed"))] is job)


def _choice(job: Job, name: str) -> str:
    """The name of a config group's choice, in the user's words where there are any."""
    chosen = overrides(job).get(name)
    if chosen:
        return chosen
    config = job.config.get(name)
    if isinstance(config, Mapping):
        named = (config.get(key) for key in ("_target_", "kind", "name"))
        target = next(filter(None, named), "unknown")
        return str(target).rpartition(".")[2]
    return str(config) if config is not None else "unknown"


def _varying(jobs: list[Job]) -> list[str]:
    """Keys that differ between configurations and have no column of their own."""
    asked = [overrides(job) for job in jobs]
    keys = [
        key
        for key in dict.fromkeys(key for one in asked for key in one)
        if key not in _OWN
        and not key.startswith("hydra")
        and not under(key, UNSTORED)
        and len({one.get(key) for one in asked}) > 1
    ]
    keys += [key for key in SAID if any(_said(job, key) is not None for job in jobs)]
    columns = {tuple(str(_value(job, key)) for job in jobs) for key in keys}
    configs = [leaves(_own(job)) for job in jobs]
    strategies = [_choice(job, "strategy") for job in jobs]
    called: dict[str, tuple[str, ...]] = {}  # groups that are told by what they call
    for key in dict.fromkeys(key for config in configs for key in config):
        others = [other for other in keys if other not in called]
        if key in _OWN or key == "strategy._target_" or under(key, others):
            continue
        column = tuple(str(config.get(key)) for config in configs)
        group, _, argument = key.partition(".")
        if group in called and _follows(column, called[group]):
            continue
        if column in columns or not _differs(key, configs, strategies):
            continue
        if argument == "_target_" and group not in _OWN:
            # In the words of an override, as scaling=linear is.
            key, called[group] = group, column
        keys.append(key)
        columns.add(column)
    return keys


def _follows(column: Sequence[str], other: Sequence[str]) -> bool:
    """Whether the one value of each row is known from the other."""
    return len({*zip(column, other, strict=True)}) == len({*other})


def _differs(key: str, configs: list[dict], strategies: list[str]) -> bool:
    if not key.startswith("strategy."):
        return len({str(config.get(key)) for config in configs}) > 1
    # Each strategy has arguments of its own: only a change within one is a choice.
    within: dict[str, set[str]] = {}
    for config, strategy in zip(configs, strategies, strict=True):
        within.setdefault(strategy, set()).add(str(config.get(key)))
    return any(len(values) > 1 for values in within.values())


def _resumed(job: Job) -> str | None:
    """Of a run that went on with other numbers of workers: all of them, in order."""
    before = job.summary.get("earlier_workers")
    if not before:
        return None
    counts = [*(count for count, _ in before), job.summary.get("workers")]
    return f"{' -> '.join(map(str, counts))} workers"


def _said(job: Job, key: str) -> Any:
    """What no config says: of another number of workers before, and of processes."""
    if key == RESUMED:
        return _resumed(job)
    placement = job.summary.get("placement")
    count = placement.get("processes") if isinstance(placement, Mapping) else None
    return count if count != 1 else None


def _value(job: Job, key: str) -> Any:
    if key in SAID:
        return _said(job, key)
    asked = overrides(job).get(key)
    if asked is None:
        value = job.config
        for part in key.split("."):
            if isinstance(value, list):
                value = {str(i): x for i, x in enumerate(value)}
            value = value.get(part) if isinstance(value, Mapping) else None
        # An override group such as ``scaling`` resolves to the call that it names.
        if isinstance(value, Mapping):
            return _choice(job, key)
        if key == "schedule" and value is None:
            return "constant"  # the choice that is null
        return json.dumps(value) if isinstance(value, list) else value
    try:
        return int(asked)
    except ValueError:
        try:
            return float(asked)
        except ValueError:
            return asked
