"""Names of what stands in a folder of checkpoints, and what is read without Orbax."""

import json
from pathlib import Path
from typing import Any

from parsgd.checkpoint import lock
from parsgd.errors import FolderError

TEMPORARY = ".orbax-checkpoint-tmp"  # being written
STATE, META = "state", "meta"  # parts of a checkpoint
NEEDED = {"format", "facts", "config", "workers", "leaves", "step", "round", "history"}
PATTERN = "*?[\\"  # in a path
UNREADABLE, REPLACED = ".unreadable", ".replaced"  # out of the way


def steps_in(folder: Path) -> list[int]:
    """The checkpoints that a folder holds, the newest first."""
    if not folder.is_dir():
        return []
    found = (int(path.name) for path in folder.iterdir() if is_step(path.name))
    return sorted(found, reverse=True)


def is_step(name: str) -> bool:
    """Whether it is a number as checkpoints are named by, and no other digit."""
    return name.isascii() and name.isdecimal()


def read_meta(folder: Path, step: int) -> dict[str, Any]:
    """What a checkpoint says besides its arrays, as the JSON that it is.

    Orbax would start JAX's backend, and wait for the other processes.

    Raises:
        OSError: There is no such file.
        ValueError: It is not what was written.
    """
    meta = json.loads((folder / str(step) / META / "metadata").read_text())
    if not isinstance(meta, dict) or not meta.keys() >= NEEDED:
        raise ValueError("it was not written by parsgd")
    return meta


def refuse_pattern(folder: Path) -> None:
    """Refuse a path in which Orbax would look for other files than it wrote.

    It takes these characters of the path for a pattern, and does not find its parts.

    Raises:
        FolderError: Names them.
    """
    path = folder.resolve()  # as the store works in it
    if odd := [c for c in PATTERN if c in str(path)]:
        raise FolderError(
            f"{path}: checkpoints cannot be in a folder whose path has "
            f"{' '.join(odd)} in it, as they could not be read again: choose another "
            "with hydra.run.dir=DIR, or go on without them (checkpoint.rounds=null, in "
            "a script checkpoints=None)"
        )


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder with anything in it that is neither checkpoint nor lock."""
    if not folder.is_dir():
        return

    def known(name: str) -> bool:
        stem = name.partition(".")[0]
        kinds = (TEMPORARY, UNREADABLE, REPLACED)
        ours = is_step(stem) and any(kind in name for kind in kinds)
        return name == lock.NAME or is_step(name) or ours

    if others := sorted(p.name for p in folder.iterdir() if not known(p.name)):
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise FolderError(
            f"{folder} holds something else than checkpoints: "
            f"{', '.join(others[:3])}{more}. Choose another folder, or move that away"
        )


def free(path: Path) -> Path:
    """The path, or the first of path-1, path-2, ... that does not exist."""
    number, free = 0, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
