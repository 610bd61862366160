"""The folder of a sweep: whose it is, and which of its jobs it has no place for."""

import errno
import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parsgd.cli.earlier import overrides_in
from parsgd.config.overrides import trained
from parsgd.errors import UserError
from parsgd.results.writing import CONFIG, METRICS, RESULT

SWEPT = "multirun.yaml"  # Hydra writes it into the folder of a sweep
REFUSED = ".refused"  # jobs of this sweep whose folders keep another run, and why


def named(folder: str | None, key: str) -> Path:
    """A folder that was named; an empty name, as of an unset variable, is refused."""
    if not folder:
        raise UserError(f"{key}= is empty: name a folder, or leave it out")
    return Path(folder)


def make_folder(folder: Path, key: str) -> None:
    """Find out before the work whether its results can be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written ({error.strerror}): choose another folder "
            f"with {key}=DIR"
        ) from error


def held(folder: Path) -> int:
    """The sweep's file, locked until it is closed or the process ends."""
    file = os.open(folder / SWEPT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise UserError(
            f"another sweep is running in {folder}, and their jobs would mix: wait for "
            "it or end it, or choose another folder with hydra.sweep.dir=DIR"
        ) from error
    return file


def refuse_run(folder: Path) -> None:
    """A single run in a sweep's folder would count as one of its jobs."""
    if there := [n for n in (CONFIG, METRICS, RESULT) if (folder / n).is_file()]:
        raise UserError(
            f"{folder} is the folder of a single run, with a {there[-1]} of its own, "
            "and the report would count it as a job of this sweep: choose another "
            "folder with hydra.sweep.dir=DIR"
        )


def refuse_other_sweep(folder: Path, jobs: Sequence[Sequence[str]]) -> None:
    """Jobs are numbered, so a folder can be completed only by the same sweep."""
    for number, job in enumerate(jobs):
        there = overrides_in(folder / str(number))
        if there is not None and trained(there) != trained(job):
            raise UserError(
                f"{folder} holds another sweep: its job {number} is "
                f"{' '.join(there)}, here it would be {' '.join(job)}. Run what is new "
                "in another (hydra.sweep.dir=DIR), and `parsgd report` with both "
                "folders makes one table of them; or repeat that sweep to complete it"
            )


def note_refused(hydra: Any, folder: Path, reason: str | None) -> None:
    """Keep, until the sweep ends, that a job was refused its folder, and why.

    The job may be in another process, and what its folder holds is not its own.
    """
    sweep = Path(hydra.runtime.cwd, hydra.sweep.dir)
    with open(sweep / REFUSED, "a") as file:
        file.write(json.dumps([os.path.relpath(folder, sweep), reason]) + "\n")


def clear_refused(sweep: Path) -> None:
    """Forget the jobs of a sweep that was broken off."""
    (sweep / REFUSED).unlink(missing_ok=True)


def tell_refused(sweep: Path) -> int:
    """Print which jobs were refused their folders; how many they are."""
    file = sweep / REFUSED
    lines = file.read_text().splitlines() if file.exists() else []
    for line in lines:
        folder, reason = json.loads(line)
        print(f"refused: {sweep / folder}: {reason}")
    clear_refused(sweep)
    return len(lines)
