"""Checkpoints in a folder, written and read by Orbax.

A checkpoint is a folder named by the optimizer step, with two parts: ``state``, the
arrays by name, and ``meta``, everything else as JSON. Orbax writes both into a
temporary folder, in the background, and renames it when all of it is there.
"""

import contextlib
import errno
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from parsgd import cluster
from parsgd.checkpoint import lock
from parsgd.checkpoint.settings import FolderError
from parsgd.errors import UserError

STATE, META, SUMS = "state", "meta", "crc32"
TEMPORARY, UNREADABLE = ".orbax-checkpoint-tmp", ".unreadable"


class Store:
    """The checkpoints of one run.

    Args:
        folder: Where they are; it exists.
        keep_last: Newest ones to keep.
        best: Which of some steps to keep besides, asked after each save; None to read
            only.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_last: int = 1,
        best: Callable[[Sequence[int]], set[int]] | None = None,
    ):
        self.folder = folder.resolve()
        policies = ocp.checkpoint_managers
        keep = _Listed(best or (lambda steps: {*steps}))
        self._manager = ocp.CheckpointManager(
            self.folder,
            item_names=(STATE, META),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy(
                    [policies.LatestN(keep_last), keep]
                ),
                cleanup_tmp_directories=best is not None,
                save_root_metadata=False,
                read_only=best is None,
            ),
        )

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are complete, the newest first."""
        return sorted(self._manager.all_steps(), reverse=True)

    def meta(self, step: int) -> dict[str, Any]:
        """What is stored besides the arrays.

        Raises:
            Exception: Of any kind, if it cannot be read.
        """
        args = ocp.args.Composite(**{META: ocp.args.JsonRestore()})
        meta = self._manager.restore(step, args=args)[META]
        if not isinstance(meta, dict) or "leaves" not in meta:
            raise ValueError("it was not written by parsgd")
        return meta

    def arrays(
        self, step: int, wanted: Mapping[str, jax.ShapeDtypeStruct]
    ) -> dict[str, Any]:
        """The arrays: on the devices where ``wanted`` says so, else as numpy arrays.

        Raises:
            Exception: Of any kind, if they cannot be read.
        """
        # Only their names count where they are not to be placed.
        args = {
            name: ocp.RestoreArgs(restore_type=np.ndarray)
            if spec.sharding is None
            else ocp.ArrayRestoreArgs(sharding=spec.sharding, dtype=spec.dtype)
            for name, spec in wanted.items()
        }
        restore = ocp.args.PyTreeRestore(item=dict(wanted), restore_args=args)
        parts = ocp.args.Composite(**{STATE: restore})
        found = self._manager.restore(step, args=parts)[STATE]
        stored = self.meta(step).get(SUMS) or {}
        for name, value in _sums(found).items():
            if value != stored.get(name, value):
                raise ValueError(f"{name} is not what was saved: its checksum differs")
        return found

    def save(
        self, step: int, arrays: Mapping[str, jax.Array], meta: Mapping[str, Any]
    ) -> None:
        """Begin to write a checkpoint; waits for the one before.

        Raises:
            UserError: The one before, or this one, cannot be written.
        """
        parts = {
            STATE: ocp.args.PyTreeSave(dict(arrays)),
            META: ocp.args.JsonSave(dict(meta) | {SUMS: _sums(arrays)}),
        }
        with self._explained():
            self._manager.save(step, args=ocp.args.Composite(**parts), force=True)

    def wait(self) -> None:
        """Wait until what was begun is on the disk.

        Raises:
            UserError: It cannot be written.
        """
        with self._explained():
            self._manager.wait_until_finished()

    def set_aside(self, steps: Sequence[int]) -> None:
        """Take checkpoints that cannot be read out of the way, without deleting them.

        Of several processes the first does it.

        Args:
            steps: Which.
        """
        for step in steps if cluster.is_first() else ():
            path = self.folder / str(step)
            with contextlib.suppress(FileNotFoundError):
                path.rename(_free(path.with_name(path.name + UNREADABLE)))
        cluster.agree("set aside", "")  # before the others look
        self._manager.reload()

    def close(self) -> None:
        """Wait for the writing, and end its threads."""
        with self._explained():
            self._manager.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from error
        except ValueError as error:
            # What its writers report: the reason is somewhere in the first line.
            reason = str(error).strip().partition("\n")[0]
            full = os.strerror(errno.ENOSPC)
            raise self._failed(full if full in reason else reason) from error

    def _failed(self, reason: str) -> UserError:
        there = self.steps()
        last = f"the last one is of step {there[0]}" if there else "there is none yet"
        return UserError(
            f"a checkpoint cannot be written into {self.folder} ({reason}); {last}. "
            "Make room or mend the folder, then repeat the command: it goes on from "
            "there"
        )


def _sums(arrays: Mapping[str, Any]) -> dict[str, int]:
    """Checksums of the arrays that this process has the whole of.

    Orbax's data files have none of their own.
    """
    return {
        name: zlib.crc32(np.atleast_1d(np.asarray(x)).tobytes())
        for name, x in arrays.items()
        if not isinstance(x, jax.Array) or x.is_fully_addressable
    }


class _Listed(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps the steps that a function picks."""

    def __init__(self, pick: Callable[[Sequence[int]], set[int]]):
        self._pick = pick

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Any:
        """Whether to keep each of ``checkpoints``."""
        del context
        wanted = self._pick([info.step for info in checkpoints])
        return [info.step in wanted for info in checkpoints]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Orbax's log, which shows tracebacks of what is reported anyway."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder with anything in it that is neither checkpoint nor lock."""

    def known(name: str) -> bool:
        stem = name.partition(".")[0]
        return (
            name == lock.NAME
            or name.isdigit()
            or (stem.isdigit() and (TEMPORARY in name or UNREADABLE in name))
        )

    if others := sorted(p.name for p in folder.iterdir() if not known(p.name)):
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise FolderError(
            f"{folder} holds something else than checkpoints: "
            f"{', '.join(others[:3])}{more}. Choose another folder, or move that away"
        )


def _free(path: Path) -> Path:
    """The path, or the first of path-1, path-2, ... that does not exist."""
    number, free = 0, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
