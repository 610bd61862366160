"""Which code of the user's own a config calls, as a checksum."""

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from parsgd.config.targets import ALLOWED, calls


def code_checksum(config: Mapping[str, Any]) -> str | None:
    """Of the files that define the targets outside the shipped packages.

    A run is another one if its algorithm was edited, though its config is the same.
    What those files import is not looked at.

    Args:
        config: A job's.

    Returns:
        None if it calls no code of one's own, or its files are not found.
    """
    targets = sorted({str(node["_target_"]) for _, node in calls(config, "config")})
    own = [target for target in targets if target.partition(".")[0] not in ALLOWED]
    files = sorted({file for target in own if (file := _file(target))})
    if not files:
        return None
    sums = hashlib.sha256()
    for file in files:
        sums.update(file.read_bytes())
    return sums.hexdigest()[:16]


def _file(target: str) -> Path | None:
    """Of the module that a target stands in: the longest of its parents that is one."""
    name = target
    while "." in name:
        name = name.rpartition(".")[0]
        try:
            spec = find_spec(name)
        except (ImportError, ValueError, AttributeError):
            continue
        if spec is not None and spec.origin and Path(spec.origin).is_file():
            return Path(spec.origin)
    return None
