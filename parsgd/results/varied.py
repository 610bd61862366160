"""What tells configurations apart, in the user's own words."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from parsgd.flat import UNSTORED, leaves, under
from parsgd.results.reading import Job
from parsgd.results.said import SAID, said

# Settings with a column of their own, and how a label spells them.
SIZES = {"workers": "workers", "local_steps": "H", "global_batch": "batch"}
_OWN = {"seed", "strategy", "task", "worker_batch", *SIZES}
PARAMETERS = "parameters"  # of the model: where nothing else tells networks apart


def overrides(job: Job) -> dict[str, str]:
    """The job's overrides as a dict: ``+scaling=linear`` gives scaling: linear."""
    pairs = (text.lstrip("+~").partition("=") for text in job.overrides)
    return {key: value for key, _, value in pairs}


def choice_of(job: Job, name: str) -> str:
    """The name of a config group's choice: as asked for, as composed, or as called."""
    chosen = overrides(job).get(name) or job.choices.get(name)
    return str(chosen) if chosen else name_of_call(job, name)


def name_of_call(job: Job, name: str) -> str:
    """What a part of the config is by its own words: the last of its call's, if any."""
    config = job.config.get(name)
    if isinstance(config, Mapping):
        named = (config.get(key) for key in ("_target_", "kind", "name"))
        target = next(filter(None, named), "unknown")
        return str(target).rpartition(".")[2]
    return str(config) if config is not None else "unknown"


def with_choices(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs, those that recorded no choices with the ones of their like.

    Results of earlier versions and jobs without a result have none. Beside others whose
    strategies make the same calls and all have one name, theirs has it too.
    """
    names: dict[str, set[str]] = {}
    for job in jobs:
        if choice := job.choices.get("strategy"):
            names.setdefault(_calls(job.config.get("strategy")), set()).add(choice)

    def filled(job: Job) -> Job:
        alike = names.get(_calls(job.config.get("strategy")), set())
        return job._replace(choices={"strategy": min(alike)} if len(alike) == 1 else {})

    return [job if job.choices else filled(job) for job in jobs]


def _calls(node: Any) -> str:
    """All that a part of a config calls, and where, as a text."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, Mapping):
        return ""
    inner = {str(key): _calls(value) for key, value in node.items()}
    inner = {key: calls for key, calls in inner.items() if calls}
    return json.dumps([node.get("_target_"), sorted(inner.items())])


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
        and not _alike(key, configs)
    ]
    keys += [key for key in SAID if any(said(job, key) is not None for job in jobs)]
    columns = {tuple(str(value_of(job, key)) for job in jobs) for key in keys}
    strategies = [choice_of(job, "strategy") for job in jobs]
    called: dict[str, tuple[str, ...]] = {}  # groups that are told by what they call
    for key in dict.fromkeys(key for config in configs for key in config):
        others = [other.replace("/", ".") for other in keys if other not in called]
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
        return said(job, key)
    if key == PARAMETERS and key not in job.config:
        return job.summary.get(key)
    asked = overrides(job).get(key)
    if asked is None:
        value = found(job.config, key)
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


def found(config: Mapping[str, Any], key: str) -> Any:
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


def _follows(column: Sequence[str], other: Sequence[str]) -> bool:
    """Whether the one value of each row is known from the other."""
    return len({*zip(column, other, strict=True)}) == len({*other})


def _alike(key: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all have a key with one value, in whichever words it was asked for."""
    known = all(key in config for config in configs)
    return known and len({str(config[key]) for config in configs}) == 1


def _differs(key: str, configs: list[dict], strategies: list[str]) -> bool:
    if not key.startswith("strategy."):
        return len({str(config.get(key)) for config in configs}) > 1
    # Each strategy has arguments of its own: only a change within one is a choice.
    within: dict[str, set[str]] = {}
    for config, strategy in zip(configs, strategies, strict=True):
        within.setdefault(strategy, set()).add(str(config.get(key)))
    return any(len(values) > 1 for values in within.values())
