"""Counts what a run has done, and cuts it into dispatches."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from parsgd.engine import Engine, Outcome
from parsgd.plan import Plan, Segment

Record = dict[str, Any]
SECONDS_PER_DISPATCH = 0.5


class Meter:
    """Counts what a run has done, and decides how much to dispatch at once."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        parts: Sequence[Segment],
        max_bad_rounds: int,
        learning_rate: Callable[[int], Any] | None,
    ):
        self._plan, self._engine = plan, engine
        self._learning_rate, self._max_bad_rounds = learning_rate, max_bad_rounds
        kinds = {(p.phase, p.local_steps): p for p in parts}
        # What a round usually is: not the shorter last one, not a short first phase.
        self._main = max(kinds, key=lambda k: sum(p.steps for p in parts if p[:2] == k))
        self._sent = {kind: engine.traffic(*kind).bytes for kind in kinds}
        longest = {k: max(p.rounds for p in parts if p[:2] == k) for k in kinds}
        self._capacity = {k: min(engine.capacity(k[1]), longest[k]) for k in kinds}
        self._step_seconds = 0.0
        self._losses: list[np.ndarray] = []
        self._bad = 0
        self.round = self.step = 0
        self.bytes = self.seconds = self.spread = 0.0
        self.diverged: str | None = None

    def dispatches(self, part: Segment) -> Iterator[tuple]:
        """Indices, weights and round counts that make up ``part``, as time allows.

        A dispatch takes about half a second, so that progress is seen and a diverged
        run ends soon; the first one is short, to learn the speed.
        """
        todo, h = part.rounds, part.local_steps
        capacity = self._capacity[part[:2]]
        while todo and not self.diverged:
            wanted = SECONDS_PER_DISPATCH / self._step_seconds / h if self.step else 1
            count = min(todo, capacity, max(1, int(wanted)))
            yield *self._batches(h, count, capacity), count
            todo -= count

    def _batches(self, h: int, count: int, capacity: int) -> list:
        def arrange(array):
            if array is None:
                return None
            array = array.reshape(count, h, *array.shape[1:])
            padded = np.zeros((capacity, *array.shape[1:]), array.dtype)
            padded[:count] = array
            return np.ascontiguousarray(padded.transpose(2, 0, 1, 3))

        return [arrange(a) for a in self._plan.order.indices(self.step, count * h)]

    def add(self, part: Segment, count: int, outcome: Outcome) -> None:
        """Count ``count`` rounds and look for a loss that is not finite."""
        steps = count * part.local_steps
        self.round += count
        self.step += steps
        self.seconds += outcome.seconds
        self.bytes += count * self._sent[part[:2]]
        self.spread = outcome.spread
        self._step_seconds = max(outcome.seconds, 1e-6) / steps
        per_round = outcome.losses.mean(axis=(0, 2), dtype=np.float64)
        self._losses.append(per_round)
        for finite in np.isfinite(per_round):
            self._bad = 0 if finite else self._bad + 1
            if self._bad >= self._max_bad_rounds:
                self.diverged = (
                    f"training loss not finite for {self._bad} round(s) in a row, "
                    f"at step {self.step} or before"
                )
                return

    def finish(self) -> None:
        """A run that ends on a loss that is not finite has diverged too."""
        if self._bad and not self.diverged:
            self.diverged = f"training loss not finite in the last {self._bad} round(s)"

    def progress(self) -> Record:
        """Where the run is, between evaluations."""
        return {
            "round": self.round,
            "step": self.step,
            "samples": self._plan.samples_until(self.step),
            "epoch": self._plan.epochs_until(self.step),
            "seconds": self.seconds,
            "batch_loss": float(self._losses[-1][-1]) if self._losses else None,
            "bytes": self.bytes,
        }

    def record(self, scores: Record) -> Record:
        """One line of the history; starts a new interval for the mean batch loss."""
        done = self.progress()
        if self._losses:
            done["batch_loss"] = float(np.concatenate(self._losses).mean())
            self._losses = []
        rate = self._learning_rate
        done |= scores | {
            "spread": self.spread,
            "learning_rate": None if rate is None else float(rate(self.step)),
        }
        return done

    def summary(self) -> dict[str, Any]:
        """What is known before the first step."""
        plan, engine = self._plan, self._engine
        place = engine.placement
        kind = self._main
        workers = engine.placement.workers
        dense = 2 * (workers - 1) / workers * engine.parameter_bytes * kind[1]
        return {
            "workers": workers,
            "local_steps": kind[1],
            "worker_batch": plan.order.worker_batch,
            "global_batch": plan.order.global_batch,
            "steps_per_epoch": plan.order.steps_per_epoch,
            "dropped_per_epoch": plan.order.dropped,
            "parameters": engine.parameters,
            "placement": {
                "kind": place.kind,
                "devices": len(place.devices),
                "lanes": place.lanes,
                "reason": place.reason,
            },
            "bytes_per_round": self._sent[kind],
            "bytes_dense_per_round": dense,
            "stopped": "budget",
        }

    def totals(self) -> dict[str, Any]:
        """What the run took."""
        samples = self._plan.samples_until(self.step)
        return {
            "rounds": self.round,
            "steps": self.step,
            "samples": samples,
            "bytes": self.bytes,
            "compile_seconds": self._engine.compile_seconds,
            "train_seconds": self.seconds,
            "samples_per_second": samples / max(self.seconds, 1e-9),
        }
