"""The loop of a run: dispatches, evaluations, and checkpoints between them."""

from collections.abc import Mapping, Sequence
from typing import Any

from parsgd.core import TrainState
from parsgd.training.earlier import place_of
from parsgd.training.engine import Engine
from parsgd.training.evaluate import Evaluation, all_finite
from parsgd.training.faults import Skipped
from parsgd.training.keeper import Keeper
from parsgd.training.meter import Meter, Record
from parsgd.training.observer import Observer
from parsgd.training.plan import Plan
from parsgd.training.segments import Segment, after, stretches


class Loop:
    """A run between its start and its end.

    Args:
        plan: The sizes and the number of steps of the whole run.
        segments: The run, cut where its program changes; see `Segment`.
        engine: Runs rounds.
        meter: Counts what was run, and cuts stretches into dispatches.
        evaluate: Scores the readout of a state.
        keeper: Saves checkpoints, or does nothing.
        observer: Is told of progress and of each record.
        check_replicas: Whether to compare the devices' copies after each dispatch.
        target_accuracy: Stop at the first evaluation that reaches it; None for never.
        earlier: What the run was before it was resumed; see `parsgd.training.earlier`.

    Attributes:
        history: One record per evaluation.
    """

    def __init__(
        self,
        plan: Plan,
        segments: Sequence[Segment],
        engine: Engine,
        meter: Meter,
        *,
        evaluate: Evaluation,
        keeper: Keeper,
        observer: Observer,
        check_replicas: bool = False,
        target_accuracy: float | None = None,
        earlier: Mapping[str, Any],
    ):
        self._plan = plan
        self._segments = segments
        self._engine = engine
        self._meter = meter
        self._evaluate = evaluate
        self._keeper = keeper
        self._observer = observer
        self._check_replicas = check_replicas
        self._target = target_accuracy
        self._earlier = earlier
        self._state: Any = None
        self._apart: tuple[int, Any] | None = None  # before the last synchronisation
        self.history: list[Record] = []

    @property
    def reached(self) -> bool:
        """Whether the last evaluation reached the target accuracy."""
        if self._target is None:
            return False
        return self.history[-1].get("test_accuracy", -1.0) >= self._target

    def run(
        self,
        state: TrainState,
        history: Sequence[Record],
        evaluations: int,
        told: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Run what is left, from ``state`` and the records that came before.

        Args:
            state: All workers' state; its buffers are reused.
            history: The records so far; empty at the start of a run.
            evaluations: How many the whole run has.
            told: Of the skipped steps, as stored; None at the start of a run.
        """
        meter, keeper = self._meter, self._keeper
        self._state, self.history = state, [*history]
        self._skipped = Skipped(self._engine.placement, state, told)
        del state
        if not self.history:
            self._record()
        bound = self._plan.origin.round
        left = max(1, round(evaluations * self._plan.part_left))
        for stretch in stretches(self._segments, left):
            if meter.diverged or self.reached:
                break
            start, bound = bound, bound + sum(segment.rounds for segment in stretch)
            if bound < meter.round or bound <= self.history[-1]["round"]:
                continue  # before the checkpoint that the run goes on from
            for segment in after(stretch, max(0, meter.round - start)):
                self._run(segment, bound)
            self._record()
            keeper.evaluated(meter.round, self._save, healthy=meter.healthy)
        meter.finish()
        if self._evaluate.model is None:  # no step was left to run
            self._evaluate(self._state, meter.phase)
        # The last to look whether the run is asked to end.
        keeper.finish(meter.round, self._save, healthy=meter.healthy)

    def _run(self, segment: Segment, bound: int) -> None:
        meter, keeper = self._meter, self._keeper
        for index, weight, count in meter.dispatches(segment, keeper.limit):
            last = meter.round + count == bound
            outcome = self._engine.run(
                self._state,
                segment.phase,
                index,
                weight,
                count,
                measure=last,
            )
            self._state = outcome.state
            self._apart = (segment.phase, outcome.apart) if last else None
            meter.add(segment, count, outcome)
            if self._check_replicas:
                self._engine.check_replicas(self._state)
            self._observer.progress(meter.step, self._plan.steps, meter.progress())
            keeper.dispatched(
                meter.round,
                self._save,
                healthy=meter.healthy,
                evaluates=meter.round == bound,
            )

    def _record(self) -> None:
        spread = None if self._meter.step else 0.0
        if self._apart:
            spread, self._apart = self._engine.spread(*self._apart), None
        scores = self._evaluate(self._state, self._meter.phase)
        model = self._evaluate.model
        assert model is not None
        # Agreed: a process that alone took the model for broken would alone not save.
        finite = self._engine.agreed(float(all_finite(model[0]))) == 1
        self.history.append(self._meter.record(scores, spread=spread, finite=finite))
        self._observer.record(self.history[-1])
        for line in self._skipped.lines(self._state):
            self._observer.say(line)

    def _save(self) -> None:
        meter, plan = self._meter, self._plan
        # The last update may have made a NaN that no loss has shown yet.
        if not self._engine.finite(self._state):
            return
        samples = plan.samples_until(meter.step)
        meta = {
            "step": meter.step,
            "round": meter.round,
            "samples": samples,
            "steps": plan.steps,
            "batch": plan.batch(meter.step),
            "global_batch": plan.order.global_batch,
            "origin": [*plan.origin],
            "counts": meter.counts(),
            "skipped": self._skipped.told,
            "history": [*self.history],
            "place": place_of(self._engine.placement),
            **self._earlier,
        }
        self._keeper.save(self._state, self._engine, meta)
