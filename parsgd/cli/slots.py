"""A share of the machine for each of several processes that run jobs side by side.

Times mean something only if jobs do not fight for the same cores, and an accelerator
belongs to one process. A slot is held by a lock on a file until its process ends, so it
passes on by itself to the next, whatever became of the first.
"""

import fcntl
import os
import time
from importlib.metadata import entry_points
from pathlib import Path

from parsgd import cores
from parsgd.cluster import gpus
from parsgd.cluster.gpus import VISIBLE as GPUS
from parsgd.errors import UserError

ALL_GPUS = "PARSGD_GPUS"  # the same, as the process that started the sweep had it
_held: list[object] = []  # files whose locks this process keeps


def at_once(count: int) -> int:
    """How many of ``count`` jobs run at once: no more than GPUs, if they use GPUs.

    On one that two jobs share the second finds no memory, for JAX takes most of it.
    """
    found = _gpus() if _on_gpus() else []
    return min(count, len(found)) if found else count


def _on_gpus() -> bool:
    """Whether JAX would run on CUDA's devices here."""
    asked = os.environ.get("JAX_PLATFORMS", "")
    if asked and not {"cuda", "gpu"} & {*asked.split(",")}:
        return False
    return any("cuda" in plugin.name for plugin in entry_points(group="jax_plugins"))


def share(folder: Path, count: int, *, wait: bool = False) -> int:
    """Take one of ``count`` shares of cores and GPUs, before JAX's backend starts.

    A process that has one already keeps it.

    Args:
        folder: Where the locks are, the same for all processes that share.
        count: How many processes run at once.
        wait: Whether to wait for one that is free, as long as it takes.

    Returns:
        The number of the share.

    Raises:
        UserError: More processes than shares.
    """
    if _held:
        return int(Path(_held[0].name).suffix[1:])  # type: ignore[attr-defined]
    folder.mkdir(parents=True, exist_ok=True)
    while (slot := _take(folder, count)) is None:
        if not wait:
            raise _all_taken(folder, count)
        time.sleep(0.2)
    _keep_to(slot, count)
    return slot


def _take(folder: Path, count: int) -> int | None:
    for slot in range(count):
        file = open(folder / f"slot.{slot}", "a")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        _held.append(file)
        return slot
    return None


def _all_taken(folder: Path, count: int) -> UserError:
    owners = [(folder / f"slot.{slot}").read_text().strip() for slot in range(count)]
    return UserError(
        f"all {count} shares of this machine are in use, by processes "
        f"{', '.join(owners)} of a sweep in the same folder: wait for them or end them"
    )


def _keep_to(slot: int, count: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, part(cores.usable(), slot, count))
    if found := _gpus():
        os.environ[GPUS] = ",".join(part(found, slot, count))


def part(things: list, slot: int, count: int) -> list:
    """The slot's share of a list, as large as any other; what is left over is idle.

    Where there are too few, some slots share one.

    Example:
        >>> part([0, 1, 2, 3, 4], 1, 2), part(["a"], 3, 4)
        ([1, 3], ['a'])
    """
    each = max(1, len(things) // count)
    return things[slot % len(things) :: count][:each] if things else []


def remember_gpus() -> None:
    """Keep what CUDA may use now, for jobs whose process may use a part of it."""
    # A sweep within a job of another has that job's part.
    os.environ[ALL_GPUS] = ",".join(gpus.visible(os.environ))


def _gpus() -> list[str]:
    """What CUDA may use: as the environment says, else all that the system shows."""
    shared = os.environ.get(ALL_GPUS)
    return gpus.visible(os.environ if shared is None else {GPUS: shared})
