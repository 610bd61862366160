"""What tells configurations apart, in the user's own words."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parsgd.flat import OTHER, UNSTORED, leaves, under
from parsgd.results.reading import Job

# Settings with a column of their own, and how a label spells them.
SIZES = {"workers": "workers", "local_steps": "H", "global_batch": "batch"}
_OWN = {"seed", "strategy", "task", "worker_batch", *SIZES}
RESUMED = "resumed"  # what a run is said to be that went on with other settings
PROCESSES = "processes"  # of runs of several: their seconds are of another kind
SAID = (RESUMED, PROCESSES)  # even where they tell nothing apart
PARAMETERS = "parameters"  # of the model: where nothing else tells networks apart
FILES = ("csv", "npz", "text")  # tasks whose data are whatever file they are given


def overrides(job: Job) -> dict[str, str]:
    """The job's overrides as a dict: ``+scaling=linear`` gives scaling: linear."""
    pairs = (text.lstrip("+~").partition("=") for text in job.overrides)
    return {key: value for key, _, value in pairs}


def choice_of(job: Job, name: str) -> str:
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


def tasks_of(jobs: Sequence[Job]) -> list[str]:
    """The name of each job's task: of data in files of the user's own, the file's.

    Where several files have one name, as much of their folders as tells them apart.
    """
    paths = [_file(job) for job in jobs]
    names: dict[Path, str] = {}
    files = {path for path in paths if path is not None}
    for path in files:
        ends = [_ending(other, path) for other in files - {path}]
        parts = path.with_suffix("").parts
        names[path] = "/".join(parts[-1 - max(ends, default=0) :])
    return [
        choice_of(job, "task") if path is None else names[path]
        for job, path in zip(jobs, paths, strict=True)
    ]


def _file(job: Job) -> Path | None:
    path = _found(job.config, "task.path")
    own = choice_of(job, "task") in FILES and isinstance(path, str)
    return Path(path) if own else None


def _ending(path: Path, other: Path) -> int:
    """How many parts two paths have in common, from the last on."""
    both = zip(
        reversed(path.with_suffix("").parts),
        reversed(other.with_suffix("").parts),
        strict=False,
    )
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))


def varying(jobs: list[Job], configs: list[dict[str, Any]]) -> list[str]:
    """Keys that differ between configurations and have no column of their own.

    Args:
        jobs: One of each configuration.
        configs: What each is told apart by, see `settings`.
    """
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
    columns = {tuple(str(value_of(job, key)) for job in jobs) for key in keys}
    strategies = [choice_of(job, "strategy") for job in jobs]
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


def value_of(job: Job, key: str) -> Any:
    """What a job has for a key of `varying`, as it was asked for or as configured."""
    if key in SAID:
        return _said(job, key)
    if key == PARAMETERS and key not in job.config:
        return job.summary.get(key)
    asked = overrides(job).get(key)
    if asked is None:
        value = _found(job.config, key)
        # An override group such as ``scaling`` resolves to the call that it names.
        if isinstance(value, Mapping):
            return choice_of(job, key)
        if key == "schedule" and value is None:
            return "constant"  # the choice that is null
        if str(value).startswith("${"):
            return None  # of a job that ended before it was known
        return json.dumps(value) if isinstance(value, list) else value
    try:
        return int(asked)
    except ValueError:
        try:
            return float(asked)
        except ValueError:
            return asked


def settings(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """What each job is told apart by: its config with dotted keys, without its seed.

    Left out is what only repeats another part: a resolved config says what
    ``compressor`` and ``feedback`` are again inside the strategy that uses them, and
    the seed again wherever a call takes it. One job alone cannot tell such a seed from
    a constant that happens to be equal, so it counts as repeated only where it follows
    the seed in all jobs that are otherwise alike.

    Added is the number of the model's parameters, where it alone tells jobs apart, as
    those of a script that does not say which networks it compares.
    """
    found = [_settings(job) for job in jobs]
    alike: dict[str, list[int]] = {}
    for i, config in enumerate(found):
        rest = {key: x for key, x in config.items() if not is_seed(key)}
        alike.setdefault(identity(rest), []).append(i)
    for members in alike.values():
        for key in {key for i in members for key in found[i] if is_seed(key)}:
            seeds = [(found[i].get(key), jobs[i].config.get("seed")) for i in members]
            if all(nested == own for nested, own in seeds):
                for i in members:
                    del found[i][key]
    for config in found:
        config.pop("seed", None)
    if not any(PARAMETERS in config for config in found):
        _add_parameters(jobs, found)
    return found


def _add_parameters(jobs: Sequence[Job], configs: Sequence[dict[str, Any]]) -> None:
    """Add the size of the networks to configs, if it alone tells some apart."""
    sizes: dict[str, set[Any]] = {}
    alike = [identity(config) for config in configs]
    for job, same in zip(jobs, alike, strict=True):
        sizes.setdefault(same, set()).add(job.summary.get(PARAMETERS))
    if all(len(known - {None}) < 2 for known in sizes.values()):
        return
    for job, same, config in zip(jobs, alike, configs, strict=True):
        known = sizes[same] - {None}
        # A job that failed has no size of its own.
        size = known.copy().pop() if len(known) == 1 else job.summary.get(PARAMETERS)
        if size is not None:
            config[PARAMETERS] = size


def identity(config: Mapping[str, Any]) -> str:
    """A text that two of `settings` share if they are the same configuration."""
    return json.dumps(config, sort_keys=True, default=str)


def _settings(job: Job) -> dict[str, Any]:
    config = {key: x for key, x in job.config.items() if key not in UNSTORED}
    config |= {key: x for key in SAID if (x := _said(job, key)) is not None}
    said = {"compressor": config.get("compressor")}
    if isinstance(config.get("feedback"), Mapping):
        said["reducer"] = config["feedback"]
    flat = leaves({key: _unrepeated(value, said) for key, value in config.items()})
    # A config may name its own output folder, which differs for every seed.
    folder = job.folder.resolve()
    return {key: value for key, value in flat.items() if not _inside(value, folder)}


def _inside(value: Any, folder: Path) -> bool:
    """Whether a value is a path of this folder, or of what is in it."""
    return isinstance(value, str) and folder in (Path(value), *Path(value).parents)


def is_seed(key: str) -> bool:
    """Whether a dotted key is that of a seed."""
    return key.rpartition(".")[2] == "seed"


def _found(config: Mapping[str, Any], key: str) -> Any:
    """What stands under a dotted key, or under a key that has dots itself."""
    flat = leaves(config)
    if key in flat:
        return flat[key]
    value: Any = config
    for part in key.split("."):
        if isinstance(value, list):
            value = {str(i): x for i, x in enumerate(value)}
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def placement_of(job: Job) -> Mapping[str, Any]:
    """How the job's workers were placed, or nothing where that is not recorded."""
    placement = job.summary.get("placement")
    return placement if isinstance(placement, Mapping) else {}


def lanes_of(job: Job) -> int:
    """How many workers shared a device at once; 0 where that is not recorded."""
    lanes = placement_of(job).get("lanes")
    return lanes if isinstance(lanes, int) else 0


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
    """Of a run that went on as another: its numbers of workers, and what it was."""
    told = []
    if before := job.summary.get("earlier_workers"):
        counts = [*(count for count, _ in before), job.summary.get("workers")]
        told.append(f"{' -> '.join(map(str, counts))} workers")
    for values, step in job.summary.get("earlier_settings") or ():
        named = [OTHER.get(key, f"{key}={x}") for key, x in values.items()]
        told += [f"{name} until step {step}" for name in named]
    return ", ".join(told) or None


def _said(job: Job, key: str) -> Any:
    """What no config says: of other settings before, and of processes."""
    if key == RESUMED:
        return _resumed(job)
    count = placement_of(job).get("processes")
    return count if count != 1 else None
