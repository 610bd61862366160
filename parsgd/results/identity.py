"""Which jobs are runs of one configuration."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parsgd.flat import UNSTORED, leaves
from parsgd.results.reading import Job
from parsgd.results.said import SAID, said
from parsgd.results.varied import PARAMETERS


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
    config |= {key: x for key in SAID if (x := said(job, key)) is not None}
    repeats = {"compressor": config.get("compressor")}
    if isinstance(config.get("feedback"), Mapping):
        repeats["reducer"] = config["feedback"]
    flat = leaves({key: _unrepeated(value, repeats) for key, value in config.items()})
    # A config may name its own output folder, which differs for every seed.
    folder = job.folder.resolve()
    return {key: value for key, value in flat.items() if not _inside(value, folder)}


def _inside(value: Any, folder: Path) -> bool:
    """Whether a value is a path of this folder, or of what is in it."""
    return isinstance(value, str) and folder in (Path(value), *Path(value).parents)


def is_seed(key: str) -> bool:
    """Whether a dotted key is that of a seed."""
    return key.rpartition(".")[2] == "seed"


def _unrepeated(node: Any, repeats: Mapping[str, Any]) -> Any:
    """The node without keys of these names that have these values, at any depth.

    A list of calls, as of a chain, becomes a dict by number, so that each of their
    arguments has a key: ``feedback._args_.0.decay``.
    """
    if isinstance(node, list):
        parts = [_unrepeated(x, repeats) for x in node]
        nested = any(isinstance(x, Mapping) for x in parts)
        return {str(i): x for i, x in enumerate(parts)} if nested else parts
    if isinstance(node, Mapping):
        kept = {k: v for k, v in node.items() if k not in repeats or v != repeats[k]}
        return {k: _unrepeated(v, repeats) for k, v in kept.items()}
    return node
