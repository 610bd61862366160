"""One run in a folder at a time."""

import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from parsgd.errors import FolderError

NAME = "lock"
OURS = re.compile(r"(process \d+ on .*, [0-9a-f]+\n)?")  # what stands in it


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system lets go of it however the process ends.

    The folder is made when missing.

    Raises:
        FolderError: Another process holds it, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Not truncated yet: the other's name stands in it.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        file = os.fdopen(os.open(folder / NAME, flags, 0o666), "r+", errors="replace")
    except OSError as error:
        raise unwritable(folder, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            other = file.read().rpartition(",")[0] or "another process"
            raise FolderError(
                f"{folder} is in use by {other}: two runs cannot save into one folder. "
                "Wait for it or end it, or choose another folder: hydra.run.dir=DIR, "
                "in a script parsgd.Checkpoints(DIR)"
            ) from None
        except OSError as error:
            raise unwritable(folder, error) from error
        file.seek(0)
        if not OURS.fullmatch(file.read(200)):
            raise FolderError(
                f"{folder / NAME} is not one of parsgd, which needs a file of "
                "that name there: move it away, or choose another folder"
            )
        file.seek(0)
        file.truncate()
        # The token makes it another file than any that was here before.
        token = os.urandom(8).hex()
        file.write(f"process {os.getpid()} on {socket.gethostname()}, {token}\n")
        file.flush()
        yield


def owner(folder: Path) -> str:
    """What its holder wrote into a folder's lock; nothing where there is none."""
    try:
        return (folder / NAME).read_text(errors="replace")[:200]
    except OSError:
        return ""


def unwritable(folder: Path, error: OSError) -> FolderError:
    """The message for a folder that does not take checkpoints."""
    return FolderError(
        f"{folder} cannot be written ({error.strerror or error}): checkpoints need a "
        "folder that you may write to and that has space; choose another with "
        "hydra.run.dir=DIR, or go on without them "
        "(checkpoint.rounds=null, in a script checkpoints=None)"
    )
