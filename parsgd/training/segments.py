"""A run as segments of equal rounds, each of which is one program."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from parsgd.core import Phase
from parsgd.training.plan import Plan


class Segment(NamedTuple):
    """Consecutive rounds with the same program.

    Attributes:
        phase: Index of the phase that runs.
        local_steps: H of every round in it.
        rounds: How many.
    """

    phase: int
    local_steps: int
    rounds: int

    @property
    def steps(self) -> int:
        """Local steps of each worker in all of its rounds."""
        return self.local_steps * self.rounds


def segments(plan: Plan, phases: Sequence[Phase]) -> list[Segment]:
    """The run from its origin on, as segments of equal rounds.

    Where H does not divide the steps of a phase, the phase ends with a shorter round.
    So every run ends synchronised, after exactly ``plan.steps`` steps.
    """
    out = []
    first = plan.origin.step
    starts = [min(max(phase.start, first), plan.steps) for phase in phases]
    starts.append(plan.steps)
    for i, phase in enumerate(phases):
        own = phase.local_steps
        h = plan.local_steps if own is None else own
        full, rest = divmod(starts[i + 1] - starts[i], h)
        out += [Segment(i, h, full)] * (full > 0) + [Segment(i, rest, 1)] * (rest > 0)
    return out


def phase_at(phases: Sequence[Phase], step: int) -> int:
    """Index of the phase that a run is in after ``step`` steps.

    Example:
        >>> from parsgd import Phase, Strategy
        >>> none = Strategy(*[None] * 4)
        >>> [phase_at([Phase(0, none), Phase(8, none)], step) for step in (0, 8, 9)]
        [0, 0, 1]
    """
    begun = [i for i, phase in enumerate(phases) if phase.start < step]
    return max(begun, default=0)


def after(segments: Sequence[Segment], rounds: int) -> list[Segment]:
    """What is left of ``segments`` after their first ``rounds`` rounds."""
    left = []
    for segment in segments:
        skipped = min(segment.rounds, rounds)
        rounds -= skipped
        if skipped < segment.rounds:
            left.append(segment._replace(rounds=segment.rounds - skipped))
    return left


def stretches(segments: Sequence[Segment], evaluations: int) -> Iterator[list[Segment]]:
    """When to evaluate: at the end of each stretch of nearly equally many rounds.

    Args:
        segments: The run.
        evaluations: How many stretches; as many as there are rounds, if they are fewer.
    """
    total = sum(segment.rounds for segment in segments)
    count = min(evaluations, total)
    bounds = [round(total * (i + 1) / count) for i in range(count)]
    todo, done = list(segments), 0
    for bound in bounds:
        stretch = []
        while done < bound:
            head = todo.pop(0)
            take = min(head.rounds, bound - done)
            stretch.append(head._replace(rounds=take))
            if take < head.rounds:
                todo.insert(0, head._replace(rounds=head.rounds - take))
            done += take
        yield stretch
