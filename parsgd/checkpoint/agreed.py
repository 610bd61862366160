"""What all processes of a run find out together about a folder of checkpoints."""

import errno
import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from parsgd import cluster
from parsgd.checkpoint.lock import owner
from parsgd.checkpoint.settings import NEWEST
from parsgd.checkpoint.waiting import until
from parsgd.errors import FolderError, UserError, first_line

if TYPE_CHECKING:
    from parsgd.checkpoint.store import Store

T = TypeVar("T")
# What a process may lack, as Python and as the libraries beneath say it.
WANTED = {
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ESTALE,
}
WANTING = ("RESOURCE_EXHAUSTED", "PERMISSION_DENIED")


class Unreadable(Exception):
    """A process cannot read a checkpoint, so all go on from another."""


class CheckpointLost(UserError):
    """A run was planned from a checkpoint that cannot be read.

    So may be its length, and what has changed since. It is set aside: a config that is
    built anew gets both from the one before, of ``step``.
    """

    def __init__(self, lines: Sequence[str], step: int):
        super().__init__(
            f"{'; '.join(lines)}; this run was planned from there: repeat the command, "
            f"which goes on from step {step}"
        )
        self.lines, self.step = lines, step


def offered(
    store: "Store", wanted: str | int, *, needed: bool = False
) -> tuple[list[int], int]:
    """The steps of all checkpoints, the newest first, and the one that is meant.

    As process 0 sees them: over NFS, and while another run writes, processes may see
    different ones at the same time.

    Args:
        store: Of the folder.
        wanted: As for `Store.chosen`.
        needed: Whether there must be one. Else the newest of none is 0.

    Raises:
        FolderError: There is no such checkpoint.
    """
    found: dict[str, Any] = {"steps": [], "chosen": 0, "why": ""}
    if cluster.is_first():
        try:
            found["steps"] = store.steps()
            if found["steps"] or needed or wanted != NEWEST:
                found["chosen"] = store.chosen(wanted)
        except UserError as error:
            found["why"] = str(error)
    found = json.loads(cluster.agree("checkpoints on offer", json.dumps(found)))
    if found["why"]:
        raise FolderError(found["why"])

    def visible() -> bool:
        store.look_again()
        return found["chosen"] in store.steps()

    if found["steps"]:
        until(visible)
    return found["steps"], found["chosen"]


def by_all(read: Callable[[], T]) -> T:
    """What is read, if every process can; what comes next they do together.

    Raises:
        Unreadable: A process cannot read it.
        FolderError: A process cannot read it now, for want of memory or permission.
    """
    found: Any = None
    problem, passes = "", False
    try:
        with cluster.busy():
            found = read()
    except Exception as error:  # Orbax raises errors of any kind
        first = first_line(error).partition(" See full")[0]
        problem, passes = f"{type(error).__name__}: {first}", _passes(error)
    answer = json.dumps([problem, passes])
    answers = cluster.exchange("checkpoint that all can read", answer)
    problems = [(text, now) for text, now in map(json.loads, answers) if text]
    for text, now in problems:
        if now:
            raise FolderError(
                f"a checkpoint cannot be read now ({text}); it may well be whole: give "
                "what is lacking, such as memory, permission or open files (ulimit "
                "-n), and repeat the command"
            )
    if problems:
        raise Unreadable(problems[0][0])
    return found


def _passes(error: Exception) -> bool:
    """Whether it is this process or machine that lacks something, not the file."""
    if isinstance(error, MemoryError) or any(word in str(error) for word in WANTING):
        return True
    return isinstance(error, OSError) and error.errno in WANTED


def shared_by_all(folder: Path) -> None:
    """Refuse a folder that is another one in another process.

    They would wait for each other's parts of a checkpoint.
    """
    wanted = cluster.agree("lock", owner(folder))
    same = until(lambda: owner(folder) == wanted)
    answers = cluster.exchange("folder", "" if same else socket.gethostname())
    other = next(((number, host) for number, host in enumerate(answers) if host), None)
    if other is None:
        return
    text = (
        f"{folder}: process {other[0]}, on {other[1]}, does not see what process 0 "
        "wrote there. The checkpoints of several processes need a folder that all of "
        "them share, as over NFS: choose one with hydra.run.dir=DIR, or go on without "
        "them (checkpoint.rounds=null, in a script checkpoints=None)"
    )
    raise FolderError(cluster.agree("the folder's name", text))


def by_the_first(act: Callable[[], None]) -> None:
    """Process 0 acts; what it refuses, all refuse."""
    message = ""
    if cluster.is_first():
        try:
            act()
        except UserError as error:
            message = str(error)
    if message := cluster.agree("checkpoints", message):
        raise FolderError(message)
