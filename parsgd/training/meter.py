"""Counts what a run has done, and cuts it into dispatches.

How rounds are grouped depends on time, so no count may depend on how they are grouped:
bytes come from numbers of rounds, losses are added up round by round.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.filesize import decimal

from parsgd.traffic import BRANCHES, all_reduce_bytes
from parsgd.training.engine import Engine, Outcome
from parsgd.training.faults import first_at_fault, too_many
from parsgd.training.plan import Plan
from parsgd.training.segments import Segment, after, phase_at
from parsgd.words import counted

Record = dict[str, Any]
SECONDS_PER_DISPATCH = 1.0


class Meter:
    """Counts what a run has done, and decides how much to dispatch at once."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        segments: Sequence[Segment],
        max_bad_rounds: int,
        learning_rate: Callable[[int], Any] | None,
    ):
        self._plan, self._engine = plan, engine
        self._learning_rate, self._max_bad_rounds = learning_rate, max_bad_rounds
        kinds = dict.fromkeys((s.phase, s.local_steps) for s in segments)
        steps = {k: sum(s.steps for s in segments if s[:2] == k) for k in kinds}
        # What a round usually is: not the shorter last one, not a short first phase.
        self._main = max(steps, key=steps.__getitem__)
        found = {kind: engine.worker.traffic(*kind) for kind in kinds}
        self._sent = {kind: traffic.bytes for kind, traffic in found.items()}
        self._at_most = any(traffic.at_most for traffic in found.values())
        self._segments = segments
        self._earlier: Sequence[Sequence[int]] = ()
        self._calls = found[self._main].calls
        longest = {k: max(s.rounds for s in segments if s[:2] == k) for k in kinds}
        self._capacity = {k: min(engine.capacity(k[1]), longest[k]) for k in kinds}
        self._step_seconds = 0.0
        self._loss: float | None = None
        self._loss_sum, self._loss_steps = 0.0, 0
        self._bad, self._first = 0, ""
        self._sound = True  # whether the last readout was finite
        self._rounds = dict.fromkeys(kinds, 0)
        self._bytes_before = 0.0
        self.round, self.step = plan.origin.round, plan.origin.step
        self.phase = 0
        self.seconds = 0.0
        self.diverged: str | None = None

    @property
    def bytes(self) -> float:
        """What a worker has sent so far."""
        sent = sum(count * self._sent[kind] for kind, count in self._rounds.items())
        return self._bytes_before + sent

    @property
    def healthy(self) -> bool:
        """Whether the last round's loss was finite, and the last readout."""
        # Steps that were skipped have moved nothing.
        return self._sound and (self._bad == 0 or self._engine.worker.skips)

    def dispatches(
        self, segment: Segment, limit: Callable[[int], int | None] = lambda round: None
    ) -> Iterator[tuple]:
        """Indices, weights and round counts that make up ``segment``, as time allows.

        A dispatch takes about a second, so that progress is seen and a diverged run
        ends soon; the first one is short, to learn the speed.

        Args:
            segment: What to run.
            limit: Most rounds to dispatch after a round, or None.
        """
        todo, h = segment.rounds, segment.local_steps
        capacity = self._capacity[segment[:2]]
        while todo and not self.diverged:
            known = self._step_seconds
            wanted = SECONDS_PER_DISPATCH / known / h if known else 1
            most = min(todo, capacity, limit(self.round) or todo)
            count = min(most, max(1, int(wanted)))
            index, weight = self._batches(h, count, capacity)
            yield index, weight, count
            todo -= count

    def _batches(self, h: int, count: int, capacity: int) -> list:
        def arrange(array):
            if array is None:
                return None
            array = array.reshape(count, h, *array.shape[1:])
            padded = np.zeros((capacity, *array.shape[1:]), array.dtype)
            padded[:count] = array
            return np.ascontiguousarray(padded.transpose(2, 0, 1, 3))

        first = self._plan.batch(self.step)
        return [arrange(a) for a in self._plan.order.indices(first, count * h)]

    def add(self, segment: Segment, count: int, outcome: Outcome) -> None:
        """Count ``count`` rounds and look for a loss that is not finite."""
        before, h = self.step, segment.local_steps
        steps = count * h
        self.round += count
        self.step += steps
        self.phase = segment.phase
        self.seconds += outcome.seconds
        self._rounds[segment.phase, segment.local_steps] += count
        self._step_seconds = max(outcome.seconds, 1e-6) / steps
        rounds = outcome.losses.swapaxes(0, 1).reshape(count, -1).astype(np.float64)
        for i, loss in enumerate(map(self._mean, rounds)):
            self._loss = loss
            self._loss_sum += h * loss
            self._loss_steps += h
            self._bad = 0 if math.isfinite(loss) else self._bad + 1
            if self._bad == 1:
                self._first = first_at_fault(outcome.losses[:, i], before + i * h)
            if self._bad >= self._max_bad_rounds:
                self.diverged = too_many(self._bad, self.step, self._first)
                return

    def _mean(self, losses: np.ndarray) -> float:
        """The loss of a round; of its finite losses only, where steps are skipped."""
        if self._engine.worker.skips:
            done = losses[np.isfinite(losses)]
            losses = done if done.size else losses
        return float(losses.mean())

    def counts(self) -> dict[str, Any]:
        """What a checkpoint keeps of this meter, as JSON can hold it."""
        sent = [[*kind, n, self._sent[kind]] for kind, n in self._rounds.items()]
        return {
            "sent": sent,
            "bytes_before": self._bytes_before,
            "seconds": self.seconds,
            "loss_of_steps": [self._loss, self._loss_sum, self._loss_steps],
            "bad_rounds": [self._bad, self._first],
        }

    def resume(
        self,
        round: int,
        step: int,
        counts: Mapping[str, Any],
        earlier: Sequence[Sequence[int]],
    ) -> None:
        """Go on where `counts` were taken.

        Args:
            round: Rounds done by then.
            step: Optimizer steps done by then.
            counts: What was counted.
            earlier: Other numbers of workers before, each with the step where it ended.
        """
        self.round, self.step, self._earlier = round, step, earlier
        self._bytes_before = counts["bytes_before"]
        sent = {(phase, h): (n, size) for phase, h, n, size in counts["sent"]}
        if all(self._sent.get(kind) == size for kind, (_, size) in sent.items()):
            self._rounds |= {kind: n for kind, (n, _) in sent.items()}
        else:
            # A round sends another number of bytes than it did.
            self._bytes_before += sum(n * size for n, size in sent.values())
        self.seconds = counts["seconds"]
        # Of the phases of now, which may begin elsewhere.
        self.phase = phase_at(self._engine.worker.phases, step)
        # Older checkpoints counted rounds: the mean begins anew.
        known = counts.get("loss_of_steps", (self._loss, 0.0, 0))
        self._loss, self._loss_sum, self._loss_steps = known
        self._bad, self._first = counts.get("bad_rounds", (0, ""))
        if self._bad >= self._max_bad_rounds:
            self.diverged = too_many(self._bad, step, self._first)

    def cautions(self) -> list[str]:
        """Lines on what a user might not expect of this run."""
        workers = self._engine.placement.workers
        vote = all_reduce_bytes(4, workers) * self._engine.worker.skips
        if workers > 1 and all(n <= vote * h for (_, h), n in self._sent.items()):
            but = " but whether to skip a step" if vote else ""
            alone = f"nothing{but} is sent: each of the {workers} workers trains alone"
            return [f"{alone}, and only their average is evaluated"]
        lines = [BRANCHES] if self._at_most else []
        if size := self._engine.worker.readout_bytes(self._main[0]):
            more = f"{decimal(round(size))} more from each, which are not counted"
            lines.append(f"workers stay apart: an evaluation averages them, {more}")
        return lines

    def finish(self) -> None:
        """At the end: a run whose last loss is not finite has diverged too."""
        if self.diverged or self.healthy:
            return
        if self._bad:
            bad = counted(self._bad, "round")
            self.diverged = f"training loss not finite in the last {bad}{self._first}"
        else:
            self.diverged = "the final model has parameters that are not finite"

    def progress(self) -> Record:
        """Where the run is, between evaluations."""
        return {
            "round": self.round,
            "step": self.step,
            "samples": self._plan.samples_until(self.step),
            "epoch": self._plan.epochs_until(self.step),
            "seconds": self.seconds,
            "batch_loss": self._loss if self._loss_steps else None,
            "bytes": self.bytes,
        }

    def record(self, scores: Record, *, spread: float | None, finite: bool) -> Record:
        """One line of the history; starts a new interval for the mean batch loss.

        Args:
            scores: Of the readout.
            spread: How far the workers were apart, if that was measured.
            finite: Whether all its parameters are.
        """
        done = self.progress()
        # A batch's loss is from before its update: the readout may show more.
        self._sound = finite
        if self._loss_steps:
            done["batch_loss"] = self._loss_sum / self._loss_steps
            self._loss_sum, self._loss_steps = 0.0, 0
        rate = self._learning_rate
        done |= scores | {
            "spread": spread,
            "learning_rate": None if rate is None else float(rate(self.step)),
        }
        return done

    def _left(self) -> list[Segment]:
        """What is still to be run."""
        return after(self._segments, self.round - self._plan.origin.round)

    def _dense(self, steps: int, workers: int | None = None) -> float:
        """What a worker sends where float gradients are all-reduced in each step."""
        workers = self._engine.placement.workers if workers is None else workers
        return all_reduce_bytes(self._engine.parameter_bytes, workers) * steps

    def _dense_until(self, step: int) -> float:
        """The same since the start of the run, whose workers may have changed."""
        total, begin = 0.0, 0
        for workers, end in self._earlier:
            total, begin = total + self._dense(end - begin, workers), end
        return total + self._dense(step - begin)

    def summary(self) -> dict[str, Any]:
        """What is known before the first step."""
        plan, engine = self._plan, self._engine
        place = engine.placement
        kind = self._main
        starts = [phase.start for phase in engine.worker.phases]
        later = [start for start in starts[kind[0] + 1 :] if start < plan.steps]
        return {
            "workers": place.workers,
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
                "processes": place.processes,
                "reason": place.reason,
            },
            "bytes_per_round": self._sent[kind],
            "calls_per_round": self._calls,
            "bytes_dense_per_round": self._dense(kind[1]),
            "bytes_from_step": starts[kind[0]],
            "bytes_until_step": later[0] if later else None,
            "bytes_planned": self.bytes
            + sum(s.rounds * self._sent[s[:2]] for s in self._left()),
            "bytes_dense_planned": self._dense_until(plan.steps),
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
            "bytes_dense": self._dense_until(self.step),
            "compile_seconds": self._engine.compile_seconds,
            "train_seconds": self.seconds,
            "samples_per_second": samples / max(self.seconds, 1e-9),
        }
