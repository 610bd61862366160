"""Which jobs are runs of one configuration."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parsgd.flat import UNSTORED, leaves
from parsgd.results.reading import Job
from parsgd.results.said import LINK, PROCESSES, RESUMED, link_of, processes_of, said
from parsgd.results.sizes import BATCHES, sizes_of
from parsgd.results.tasks import PATH, files_of
from parsgd.results.varied import PARAMETERS

EXACT = 2.0**53  # from here on not all whole numbers are floats


def settings(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """What each job is told apart by: its config with dotted keys, without its seed.

    Left out is what only repeats another part: a resolved config says what
    ``compressor`` and ``feedback`` are again inside the strategy that uses them, and
    the seed again wherever a call takes it.

    Added is what no config says: the settings before a run was resumed, the number of
    processes and the name of their network, and the number of the model's parameters
    where it alone tells jobs apart, as those of a script that does not say which
    networks it compares.
    """
    found = [
        _settings(job, path) for job, path in zip(jobs, files_of(jobs), strict=True)
    ]
    _drop_repeated_seeds(jobs, found)
    for config in found:
        config.pop("seed", None)
    _fill_unknown(found)
    for job, config in zip(jobs, found, strict=True):
        if (before := said(job, RESUMED)) is not None:
            config[RESUMED] = before
    for key, value_of in ((PROCESSES, processes_of), (LINK, link_of)):
        for config, value in zip(found, _filled(value_of, jobs, found), strict=True):
            if value not in (None, 1):
                config[key] = value
    if not any(PARAMETERS in config for config in found):
        _add_parameters(jobs, found)
    return found


def _drop_repeated_seeds(jobs: Sequence[Job], configs: list[dict[str, Any]]) -> None:
    """Remove seeds that follow the run's own in jobs that are otherwise alike.

    Jobs that lie side by side were asked for together: of each such set one is decided
    by itself. One seed alone cannot be told from a constant that happens to be equal:
    runs of one follow if all others of one do, unless a set has that constant.
    """
    alike: dict[str, list[int]] = {}
    for i, config in enumerate(configs):
        rest = {key: x for key, x in config.items() if not is_seed(key)}
        alike.setdefault(identity(rest), []).append(i)
    for members in alike.values():
        sets: dict[Path, list[int]] = {}
        for i in members:
            sets.setdefault(jobs[i].folder.resolve().parent, []).append(i)
        own = {i: configs[i].get("seed") for i in members}
        for key in {key for i in members for key in configs[i] if is_seed(key)}:
            nested = {i: configs[i].get(key) for i in members}
            several = [
                one for one in sets.values() if len({str(own[i]) for i in one}) > 1
            ]
            single = [i for one in sets.values() if one not in several for i in one]
            follow = [one for one in several if all(nested[i] == own[i] for i in one)]
            fixed = [nested[i] for one in several if one not in follow for i in one]
            if all(nested[i] == own[i] and nested[i] not in fixed for i in single):
                follow.append(single)
            for i in (i for one in follow for i in one):
                configs[i].pop(key, None)


def _fill_unknown(configs: Sequence[dict[str, Any]]) -> None:
    """What a job that ended early never came to know, from those alike in all else."""

    def without(config: Mapping[str, Any], keys: Sequence[str]) -> str:
        return identity({key: x for key, x in config.items() if key not in keys})

    for config in configs:
        open_keys = [key for key, x in config.items() if str(x).startswith("${steps:")]
        if not open_keys:
            continue
        rest = without(config, open_keys)
        alike = [other for other in configs if without(other, open_keys) == rest]
        known = [{key: other.get(key) for key in open_keys} for other in alike]
        known = [x for x in known if not any("${" in str(v) for v in x.values())]
        if known and all(x == known[0] for x in known):
            config |= known[0]


def _filled(
    value: Callable[[Job], Any], jobs: Sequence[Job], configs: Sequence[dict[str, Any]]
) -> list[Any]:
    """A value of each job; of one that failed that of those alike, if these agree."""
    alike = [identity(config) for config in configs]
    known: dict[str, set[Any]] = {}
    for job, same in zip(jobs, alike, strict=True):
        known.setdefault(same, set()).add(value(job))
    filled = []
    for job, same in zip(jobs, alike, strict=True):
        values = known[same] - {None}
        filled.append(min(values) if len(values) == 1 else value(job))
    return filled


def _add_parameters(jobs: Sequence[Job], configs: Sequence[dict[str, Any]]) -> None:
    """Add the size of the networks to configs, if it alone tells some apart."""

    def size_of(job: Job) -> Any:
        size = job.summary.get(PARAMETERS)
        return size if isinstance(size, int) else None

    sizes = _filled(size_of, jobs, configs)
    known: dict[str, set[Any]] = {}
    for config, size in zip(configs, sizes, strict=True):
        known.setdefault(identity(config), set()).add(size)
    if all(len(some - {None}) < 2 for some in known.values()):
        return
    for config, size in zip(configs, sizes, strict=True):
        if size is not None:
            config[PARAMETERS] = size


def identity(config: Mapping[str, Any]) -> str:
    """A text that two of `settings` share if they are the same configuration."""
    return json.dumps(config, sort_keys=True, default=str)


def _settings(job: Job, path: Path | None) -> dict[str, Any]:
    config = {key: x for key, x in job.config.items() if key not in UNSTORED}
    repeats = {"compressor": config.get("compressor")}
    if isinstance(config.get("feedback"), Mapping):
        repeats["reducer"] = config["feedback"]
    flat = leaves({key: _unrepeated(value, repeats) for key, value in config.items()})
    # A config may name its own output folder, which differs for every seed.
    folder = job.folder.resolve()
    kept = {key: whole(x) for key, x in flat.items() if not _inside(x, folder)}
    if path is not None and PATH in kept:
        kept[PATH] = str(path)
    # Either batch may be asked for: the same run has the same two.
    batches = {key: sizes_of(job).get(key) for key in BATCHES}
    if None not in batches.values():
        _fill_batches(kept, batches)
    if kept.get("scaling._target_") == "parsgd.scaling.none":
        for name in ("reference_batch", "warmup_epochs"):  # it uses neither
            kept.pop(f"scaling.{name}", None)
    return kept


def _fill_batches(config: dict[str, Any], batches: Mapping[str, Any]) -> None:
    """Both batches where either is asked for; also where a call takes either."""
    if any(name in config for name in BATCHES):
        config |= batches
    own, whole = BATCHES
    for key in [key for key in config if key.endswith(f".{own}")]:
        start = key.removesuffix(own)
        both = [config[key], config.get(start + whole, "")]
        if both.count(None) == 1 and "" not in both:
            config |= {start + name: batches[name] for name in BATCHES}


def whole(value: Any) -> Any:
    """The value with 1 for 1.0, which is the same number."""
    if isinstance(value, list):
        return [whole(x) for x in value]
    if isinstance(value, Mapping):
        return {key: whole(x) for key, x in value.items()}
    integral = isinstance(value, float) and value.is_integer() and abs(value) < EXACT
    return int(value) if integral else value


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
