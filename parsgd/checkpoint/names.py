"""Names of what stands in a folder of checkpoints."""

from pathlib import Path

from parsgd.checkpoint import lock
from parsgd.checkpoint.settings import FolderError

TEMPORARY = ".orbax-checkpoint-tmp"  # being written
UNREADABLE, REPLACED = ".unreadable", ".replaced"  # out of the way


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder with anything in it that is neither checkpoint nor lock."""

    def known(name: str) -> bool:
        stem = name.partition(".")[0]
        kinds = (TEMPORARY, UNREADABLE, REPLACED)
        ours = stem.isdigit() and any(kind in name for kind in kinds)
        return name == lock.NAME or name.isdigit() or ours

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
