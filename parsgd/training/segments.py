"""A run as segments of equal rounds, each of which is one program."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
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
    """When to evaluate: at the end of each stretch of nearly equally many steps.

    Args:
        segments: The run.
        evaluations: How many stretches; as many as there are rounds, if they are fewer.

    Example:
        >>> run = [Segment(0, 1, 100), Segment(1, 10, 10)]
        >>> [sum(part.steps for part in stretch) for stretch in stretches(run, 4)]
        [50, 50, 50, 50]
    """
    todo, done = list(segments), 0
    for bound in _bounds(segments, evaluations):
        stretch = []
        while done < bound:
            head = todo.pop(0)
            take = min(head.rounds, bound - done)
            stretch.append(head._replace(rounds=take))
            if take < head.rounds:
                todo.insert(0, head._replace(rounds=head.rounds - take))
            done += take
        yield stretch


def _bounds(segments: Sequence[Segment], evaluations: int) -> list[int]:
    """The round that ends each stretch: the nearest to an equal share of the steps."""
    total = sum(segment.rounds for segment in segments)
    count = min(evaluations, total)
    if _equal(segments):  # a round that is cut short counts as a whole one
        segments = [Segment(0, 1, total)]
    steps = sum(segment.steps for segment in segments)
    bounds, last = [], 0
    for i in range(count):
        nearest = round(_rounds_until(segments, Fraction(steps * (i + 1), count)))
        # A long round may be the nearest to several shares: of these one ends with it,
        # and the others with rounds before, or after.
        last = min(max(nearest, last + 1), total - (count - 1 - i))
        bounds.append(last)
    return bounds


def _equal(segments: Sequence[Segment]) -> bool:
    """Whether all rounds have as many steps, but for a last one that is cut short."""
    most = max((segment.local_steps for segment in segments), default=1)
    uneven = [part for part in segments if part.local_steps < most]
    return not uneven or (uneven == [segments[-1]] and uneven[0].rounds == 1)


def _rounds_until(segments: Sequence[Segment], step: Fraction) -> Fraction:
    """How many rounds ``step`` steps are, the last of them in part."""
    rounds = Fraction(0)
    for segment in segments:
        within = Fraction(min(step, segment.steps))
        rounds += Fraction(within, segment.local_steps)
        step -= within
    return rounds
