"""Checkpoints in a folder, written and read by Orbax.

A checkpoint is a folder named by the optimizer step, with two parts: ``state``, the
arrays by name, and ``meta``, everything else as JSON. Orbax writes both into a
temporary folder, in the background, and renames it when all of it is there.
"""

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from parsgd import cluster
from parsgd.checkpoint import leaves
from parsgd.checkpoint.choice import chosen
from parsgd.checkpoint.names import META, STATE, free, read_meta, steps_in
from parsgd.checkpoint.waiting import until
from parsgd.errors import UserError, first_line

SUMS = "crc32"  # in the meta data


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
        registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
        # Random digits hardly shrink, and trying takes the cores from the training.
        arrays = ocp.PyTreeCheckpointHandler(use_compression=False)
        for argument in (ocp.args.PyTreeSave, ocp.args.PyTreeRestore):
            registry.add(STATE, argument, arrays)
        for argument in (ocp.args.JsonSave, ocp.args.JsonRestore):
            registry.add(META, argument, ocp.JsonCheckpointHandler())
        self._manager = ocp.CheckpointManager(
            self.folder,
            handler_registry=registry,
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
            OSError: It cannot be read.
            ValueError: It is not what was written.
        """
        return read_meta(self.folder, step)

    def arrays(
        self, step: int, wanted: Mapping[str, jax.ShapeDtypeStruct]
    ) -> dict[str, Any]:
        """The arrays: on the devices where ``wanted`` says so, else as numpy arrays.

        Each process reads by itself: where one cannot, the others must not wait for it.

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
        handler = ocp.PyTreeCheckpointHandler()
        try:
            found = handler.restore(
                epath.Path(self.folder) / f"{step}" / STATE, args=restore
            )
        finally:
            handler.close()
        meta = self.meta(step)
        stored = meta.get(SUMS) or {}
        for name, sums in _sums(found, meta["leaves"]).items():
            known = stored.get(name, {})
            if sums != {part: known.get(part) for part in sums}:
                raise ValueError(f"{name} is not what was saved: its checksum differs")
        return found

    def save(
        self, step: int, arrays: Mapping[str, jax.Array], meta: Mapping[str, Any]
    ) -> None:
        """Begin to write a checkpoint; waits for the one before.

        Args:
            step: Its name.
            arrays: By name; each process has its own workers' parts.
            meta: For JSON; of that, ``leaves`` describes the arrays.

        Raises:
            UserError: The one before, or this one, cannot be written.
        """
        sums: dict[str, dict[str, int]] = {}
        own = json.dumps(_sums(arrays, meta["leaves"]))
        for text in cluster.exchange("checksums", own):
            for name, parts_of in json.loads(text).items():
                known = sums.setdefault(name, {})
                if any(known.get(part, crc) != crc for part, crc in parts_of.items()):
                    raise UserError(
                        f"{name} should be the same on all workers and differs between "
                        "processes, so this state is not saved; check_replicas=true "
                        "tells from which round on"
                    )
                known.update(parts_of)
        parts = {
            STATE: ocp.args.PyTreeSave(dict(arrays)),
            META: ocp.args.JsonSave(_plain(meta) | {SUMS: sums}),
        }
        with cluster.together("saving a checkpoint"), self._explained():
            self._manager.save(step, args=ocp.args.Composite(**parts), force=True)

    def wait(self) -> None:
        """Wait until what was begun is on the disk.

        Raises:
            UserError: It cannot be written.
        """
        with cluster.together("the end of saving"), self._explained():
            self._manager.wait_until_finished()

    def chosen(self, step: str | int) -> int:
        """The number of steps that is meant; see the function of that name.

        Raises:
            FolderError: There is no such checkpoint.
        """
        return chosen(self.folder, self.steps(), step)

    def set_aside(self, steps: Mapping[int, str]) -> None:
        """Take checkpoints out of the way, without deleting them.

        Of several processes the first does it.

        Args:
            steps: Which, and what is added to their names.
        """
        for step, suffix in steps.items() if cluster.is_first() else ():
            path = self.folder / str(step)
            with contextlib.suppress(FileNotFoundError):
                path.rename(free(path.with_name(path.name + suffix)))
        cluster.agree("set aside", "")  # before the others look

        def gone() -> bool:
            self.look_again()
            return not {*steps} & {*self.steps()}

        until(gone)  # what Orbax still listed it would not write again

    def look_again(self) -> None:
        """Take notice of what others have changed in the folder."""
        self._manager.reload()

    def close(self) -> None:
        """Wait for the writing, and end its threads."""
        with cluster.together("the end of saving"), self._explained():
            self._manager.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise self.failed(error) from error

    def failed(self, error: BaseException) -> UserError:
        """In words, why a checkpoint cannot be written."""
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        else:
            # What its writers report: the reason is somewhere in the first line.
            reason, full = first_line(error), os.strerror(errno.ENOSPC)
            reason = full if full in reason else reason
        there = steps_in(self.folder)  # the manager counts those not written, too
        last = f"the last one is of step {there[0]}" if there else "there is none yet"
        return UserError(
            f"a checkpoint cannot be written into {self.folder} ({reason}); {last}. "
            "Make room or mend the folder, then repeat the command: it goes on from "
            "there"
        )


def _plain(meta: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON holds it, with NumPy's numbers as plain ones.

    What JSON cannot hold fails here, and not in the background, at the end of the run.
    """
    return json.loads(json.dumps(dict(meta), default=_number))


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise UserError(
        f"a checkpoint cannot hold {value!r}, a {type(value).__name__}: give numbers, "
        "texts, lists and dicts"
    )


def _sums(arrays: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, dict]:
    """Checksums of what this process has: ``{name: {worker, or "all": crc}}``.

    Orbax's data files have none of their own. One for each worker, so that it counts
    neither which process nor which device has it.

    Args:
        arrays: By name.
        stored: What the checkpoint says of them.
    """
    described = leaves.from_json(stored)
    out: dict[str, dict[str, int]] = {}
    for name, x in arrays.items():
        sums = out[name] = {}
        if described[name].shared:
            whole = x.addressable_data(0) if isinstance(x, jax.Array) else x
            sums["all"] = _crc(whole)
        elif isinstance(x, jax.Array):
            for shard in x.addressable_shards:
                first = shard.index[0].start or 0
                for row, one in enumerate(np.asarray(shard.data), first):
                    sums[str(row)] = _crc(one)
        else:
            sums |= {str(row): _crc(one) for row, one in enumerate(x)}
    return out


def _crc(x: Any) -> int:
    return zlib.crc32(np.atleast_1d(np.asarray(x)).tobytes())


class _Listed(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps the steps that a function picks."""

    def __init__(self, pick: Callable[[Sequence[int]], set[int]]):
        self._pick = pick

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Any:
        """Whether to keep each of ``checkpoints``."""
        del context
        wanted = self._pick([info.step for info in checkpoints])
        return [info.step in wanted for info in checkpoints]
