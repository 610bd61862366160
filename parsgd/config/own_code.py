"""Which code of the user's own a config calls, as a checksum."""

import functools
import hashlib
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from parsgd.config.targets import ALLOWED, calls

INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")  # of sysconfig


def code_checksum(config: Mapping[str, Any], allowed: Sequence[str]) -> str | None:
    """Of the files that define the targets which the user has named.

    A run is another one if its algorithm was edited, though its config is the same.
    What those files import is not looked at, nor what was installed. A file counts as
    it was when this process first asked, for that is what it has imported.

    Args:
        config: A job's.
        allowed: Top-level packages whose functions it may call; of others nothing is
            looked up, since that would run a part of them.

    Returns:
        None if it calls no code of one's own, or its files are not found.
    """
    targets = sorted({str(node["_target_"]) for _, node in calls(config, "config")})
    own = {*allowed} - {*ALLOWED}
    named = [target for target in targets if target.partition(".")[0] in own]
    found = {target: kept for target in named if (kept := _content(target))}
    if not found:
        return None
    sums = hashlib.sha256()
    for target, content in found.items():
        sums.update(f"{target} {len(content)}\n".encode() + content)
    return sums.hexdigest()[:16]


@functools.cache
def _content(target: str) -> bytes | None:
    """Of the module that a target stands in: the longest of its parents that is one."""
    installed = [Path(sysconfig.get_path(name)) for name in INSTALLED]
    name = target
    while "." in name:
        name = name.rpartition(".")[0]
        try:
            spec = find_spec(name)
        except Exception:  # whatever its package raises; to build the config tells it
            continue
        if spec is not None and spec.origin and (file := Path(spec.origin)).is_file():
            own = not any(folder in file.parents for folder in installed)
            return file.read_bytes() if own else None
    return None
