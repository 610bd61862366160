"""Which choice of each config group a run's config was composed of."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from parsgd.flat import leaves

NAMES = ("_target_", "kind")  # which of a file says first what it is


def chosen(hydra: Any, config: Mapping[str, Any]) -> dict[str, str]:
    """The name of each group's choice, also where a file of an experiment made it.

    Left out are groups of no run's config, such as Hydra's, and choices that something
    else has replaced, as ``strategy._target_=my_algorithms.mine`` does.

    Args:
        hydra: Hydra's own part of the config, from which it has composed the other.
        config: As it is stored.
    """
    folders = [
        Path(source.path)
        for source in hydra.runtime.config_sources
        if source.schema == "file"
    ]
    choices: Any = OmegaConf.to_container(hydra.runtime.choices)
    flat = leaves(config)
    return {
        group: name
        for group, name in choices.items()
        if isinstance(name, str)
        and group.partition("/")[0] in config
        and _is_still(group, _file(folders, group, name), flat)
    }


def _is_still(group: str, file: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a config still has what a choice's file says that it is."""
    place = group.replace("/", ".")
    if place in file and file[place] is None:
        return config.get(place, "") is None
    for name in NAMES:
        key = f"{place}.{name}"
        said = file.get(key, file.get(name))  # with `@package _global_`, and without
        if said is not None:
            return config.get(key) == said
    return True


def _file(folders: Iterable[Path], group: str, name: str) -> dict[str, Any]:
    """What a choice's file says, with dotted keys; nothing where there is none."""
    for folder in folders:
        path = folder / group / f"{name}.yaml"
        if path.is_file():
            found = yaml.safe_load(path.read_text(encoding="utf-8"))
            return leaves(found) if isinstance(found, dict) else {}
    return {}
