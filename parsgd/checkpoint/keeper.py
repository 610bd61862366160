"""What a run does about checkpoints: look for one, save, and end when asked to."""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from parsgd import cluster
from parsgd.checkpoint import differences, leaves, resize
from parsgd.checkpoint.agreed import (
    CheckpointLost,
    Unreadable,
    by_all,
    by_the_first,
    offered,
    shared_by_all,
)
from parsgd.checkpoint.asked import Asked, end
from parsgd.checkpoint.lock import locked
from parsgd.checkpoint.names import (
    REPLACED,
    UNREADABLE,
    refuse_foreign,
    refuse_pattern,
)
from parsgd.checkpoint.settings import (
    FORMAT,
    Checkpoints,
    check_format,
)
from parsgd.core import TrainState
from parsgd.environment import versions
from parsgd.errors import FolderError, UserError
from parsgd.signals import ENDING, handled
from parsgd.training.engine import Engine
from parsgd.training.evaluate import score_of
from parsgd.training.keeper import Keeper, Resumed
from parsgd.training.segments import phase_at

if TYPE_CHECKING:
    from parsgd.checkpoint.store import Store


@contextlib.contextmanager
def keeping(settings: Checkpoints | None) -> Iterator[Keeper]:
    """The keeper of one run; on leaving, what was saved is on the disk.

    Raises:
        UserError: The folder is in use, holds something else or cannot be written.
    """
    if settings is None:
        yield Keeper()
        return
    from parsgd.checkpoint.quiet import quiet
    from parsgd.checkpoint.store import Store

    folder = Path(settings.folder)
    refuse_pattern(folder)
    with contextlib.ExitStack() as stack:

        def claim() -> None:
            refuse_foreign(folder)  # before its lock is touched
            stack.enter_context(locked(folder))
            refuse_foreign(folder)

        by_the_first(claim)
        shared_by_all(folder)
        keeper = _Saving(settings, folder)
        stack.enter_context(quiet(keeper.broken))
        with cluster.together("opening the folder of checkpoints"):
            keeper.store = Store(folder, keep_last=settings.keep_last, best=keeper.best)
        stack.enter_context(handled(ENDING, keeper.asked.come))
        try:
            yield keeper
        except BaseException as error:
            # What went wrong first is what is reported, also to other processes that
            # wait for this one to write.
            alone = isinstance(error, Exception)
            with contextlib.suppress(UserError), contextlib.ExitStack() as told:
                if alone:
                    told.enter_context(cluster.failing(f"{error}"))
                keeper.store.close()
            raise
        keeper.store.close()


class _Saving(Keeper):
    def __init__(self, settings: Checkpoints, folder: Path):
        super().__init__()
        self.settings, self._folder = settings, folder
        self.store: Store
        self._facts: Mapping[str, Any] = {}
        self._history: Sequence[Mapping[str, Any]] = ()
        self._saved: int | None = None  # round of the newest checkpoint
        self._aside: dict[int, str] = {}  # what is renamed, and how, if the run begins
        self._last = time.monotonic()
        self.asked = Asked(quiet=settings.quiet)
        self._ending: int = 0  # the signal that asked any process to end
        self._late = False

    def look(self, facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
        self._facts = facts
        # A step that is named must be there; else a run may be at its start.
        steps, chosen = offered(self.store, self.settings.step)
        for step in [step for step in steps if step <= chosen]:
            try:
                meta = by_all(functools.partial(self.store.meta, step))
            except Unreadable:
                continue  # `restore` tells which and why
            check_format(meta, self._folder)
            old, new = meta["facts"], self._facts
            if meta["config"] and self.settings.config:
                # It tells more; but not what is in the data files, and a script's
                # perhaps not even the seed.
                phases = old["phases"], new["phases"]
                self.lines += differences.moved_phases(*phases, meta["step"])
                both = old.keys() & new.keys() - {"phases"}
                old = {key: old[key] for key in both} | meta["config"]
                new = {key: new[key] for key in both} | {**self.settings.config}
            code = "code_checksum"
            sums = meta.get(code), self.settings.code_checksum
            if None not in sums:
                old, new = {**old, code: sums[0]}, {**new, code: sums[1]}
            self.lines += differences.allowed(
                old, new, force=self.settings.force, folder=self._folder
            )
            self.changed = differences.trained_with(old, new)
            return meta
        return None

    def restore(self, engine: Engine, key: jax.Array) -> Resumed | None:
        steps, chosen = offered(self.store, self.settings.step)
        if not steps:
            return None
        newer = [step for step in steps if step > chosen]
        steps = steps[len(newer) :]
        template = engine.init(key)
        unreadable: dict[int, str] = {}
        for step in steps:
            try:
                found = self._read(step, engine, template)
            except Unreadable as error:
                unreadable[step] = str(error)
                continue
            self._take(found, unreadable, newer)
            return found
        listed = "; ".join(f"step {s}: {why}" for s, why in unreadable.items())
        raise FolderError(
            f"none of the checkpoints in {self._folder} can be read ({listed}): bring "
            "them back from a copy, or move the folder away to start anew"
        )

    def _take(
        self, found: Resumed, unreadable: Mapping[int, str], newer: Sequence[int]
    ) -> None:
        meta = found.meta
        told = [
            f"warning: the checkpoint of step {step} cannot be read ({why}); it is "
            "kept under another name"
            for step, why in unreadable.items()
        ]
        if unreadable and self.settings.config:
            # Newer ones stay: what is built anew may be refused.
            self.store.set_aside(dict.fromkeys(unreadable, UNREADABLE))
            raise CheckpointLost(told, meta["step"])
        self._aside |= dict.fromkeys(unreadable, UNREADABLE)
        self._aside |= dict.fromkeys(newer, REPLACED)
        if newer:
            kept = ", ".join(f"{step}{REPLACED}" for step in newer)
            told.append(f"checkpoints after it are kept as {kept}")
        self.lines += told
        self.lines.append(
            f"goes on from step {meta['step']}, round {meta['round']}, saved in "
            f"{self._folder}"
        )
        self.lines += differences.other_versions(meta["versions"], versions())
        self._history, self._saved = meta["history"], meta["round"]

    def _read(self, step: int, engine: Engine, template: TrainState) -> Resumed:
        meta = by_all(lambda: self.store.meta(step))
        old = leaves.from_json(meta["leaves"])
        new = leaves.describe(template, engine.shared)
        if meta["workers"] == engine.placement.workers:
            differences.same_leaves(old, new, self._folder)
            wanted = leaves.abstract(template)
            arrays = by_all(lambda: self.store.arrays(step, wanted))
            return Resumed(leaves.unpack(template, arrays), meta)
        state, lines = resize.resized(
            engine,
            template,
            self._folder,
            old,
            meta["workers"],
            phase_at(engine.worker.phases, meta["step"]),
            lambda wanted: by_all(lambda: self.store.arrays(step, wanted)),
        )
        self.lines += lines
        return Resumed(state, meta)

    def settle(self) -> None:
        if self._aside:
            self.store.set_aside(self._aside)

    def limit(self, round: int) -> int | None:
        every = self.settings.every_rounds
        return every - round % every if every else None

    def dispatched(
        self, round: int, save: Callable[[], None], *, healthy: bool, evaluates: bool
    ) -> None:
        self._ending, self._late = self._agreed()
        if healthy and evaluates:
            return  # a checkpoint without this evaluation would never have it
        if healthy and (self._ending or self._due(round)):
            save()
        self._end(round)

    def evaluated(self, round: int, save: Callable[[], None], *, healthy: bool) -> None:
        wanted = self._ending or self.settings.keep_best or self._due(round)
        if healthy and wanted:
            save()
        self._end(round)

    def finish(self, round: int, save: Callable[[], None], *, healthy: bool) -> None:
        if healthy:
            save()
        self.store.wait()
        # Since the last dispatch; a sweep must not begin another job now.
        self._ending = self._agreed()[0]
        self._end(round)

    def save(self, state: TrainState, engine: Engine, meta: Mapping[str, Any]) -> None:
        if meta["round"] == self._saved:
            return
        self._history = meta["history"]
        described = leaves.describe(state, engine.shared)
        about = {
            "format": FORMAT,
            "versions": versions(),
            "facts": self._facts,
            "config": self.settings.config,
            "overrides": [*self.settings.overrides],
            "code_checksum": self.settings.code_checksum,
            "workers": engine.placement.workers,
            "leaves": {name: list(leaf) for name, leaf in described.items()},
        }
        self.store.save(meta["step"], leaves.pack(state), dict(meta) | about)
        self._saved, self._last = meta["round"], time.monotonic()

    def best(self, steps: Sequence[int]) -> set[int]:
        """Those of the steps whose evaluations are the best."""
        found = {}
        for record in self._history:
            score = score_of(record)
            if record["step"] in steps and math.isfinite(score):
                found[record["step"]] = score
        ranked = sorted(found, key=lambda step: (-found[step], step))
        return {*ranked[: self.settings.keep_best]}

    def broken(self, error: BaseException) -> None:
        """Called in the background, when something cannot be written."""
        cluster.stuck(f"{self.store.failed(error)}")

    def _end(self, round: int) -> None:
        """End, if asked to, once what there is to save is on the disk."""
        if not self._ending:
            return
        self.store.wait()
        # Who is asked to end saves, unless there is nothing worth it.
        kept = f"nothing is saved in {self._folder}: the state or loss is not finite"
        if self._saved:
            lost = f", not {round}, which is not finite," * (round != self._saved)
            kept = f"round {self._saved}{lost} is saved in "
            kept += f"{self._folder}; {self.settings.again} goes on"
        raise end(self._ending, kept)

    def _due(self, round: int) -> bool:
        every = self.settings.every_rounds
        return self._late or (every is not None and round % every == 0)

    def _agreed(self) -> tuple[int, bool]:
        """The signal that asked any process to end, or 0; and whether it is late."""
        minutes = self.settings.every_minutes
        late = minutes is not None and time.monotonic() - self._last >= 60 * minutes
        words = cluster.exchange("checkpoint", f"{self.asked.number:d} {late:d}")
        signals, lates = zip(*(map(int, word.split()) for word in words), strict=True)
        return max(signals), bool(lates[0])
