"""Which workers' losses and gradients were not finite."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from parsgd import cluster
from parsgd.core import TrainState
from parsgd.placement import spmd
from parsgd.placement.devices import Placement
from parsgd.reducers import SkipState
from parsgd.words import counted


class Skipped:
    """Which steps were skipped since it was last asked, and whose fault it was.

    Args:
        placement: Where the workers are.
        state: All workers' state when it begins to count.
        told: `told` of the run before, if it goes on; None to count from ``state``.
    """

    def __init__(
        self,
        placement: Placement,
        state: TrainState,
        told: Sequence[Sequence[int]] | None = None,
    ):
        self._placement = placement
        self._before = self._counts(state)
        if told is not None:  # of as many workers, or dealt to others as their counts
            dealt = np.arange(placement.workers) % len(told[0])
            self._before = np.minimum(np.asarray(told)[:, dealt], self._before)

    @property
    def told(self) -> list[list[int]]:
        """Counts of what was asked for, ``[2][W]``, to be stored."""
        return self._before.tolist()

    def lines(self, state: TrainState) -> list[str]:
        """A line for each worker at fault; every process must ask."""
        counts = self._counts(state)
        (own, overflowed), self._before = counts - self._before, counts
        said = [
            f"worker {worker}: {counted(steps, 'step')} skipped, gradient not finite"
            for worker, steps in enumerate(own.tolist())
            if steps
        ]
        if steps := overflowed.max(initial=0):
            said.append(
                f"{counted(int(steps), 'step')} skipped: the gradients were finite, "
                "and their average or the step was not"
            )
        return said

    def _counts(self, state: TrainState) -> np.ndarray:
        """Skipped steps of each worker, ``[2, W]``: by its gradient's fault, or not."""

        def counting(node: Any) -> bool:
            return isinstance(node, SkipState)

        nodes = jax.tree.leaves(state.strategy, is_leaf=counting)
        found = [(x.own, x.overflowed) for x in nodes if counting(x)]
        total = np.zeros((2, self._placement.workers), np.int64)
        if found:
            with cluster.together("counting the skipped steps"):
                found = spmd.whole(found, self._placement)
        for both in found:
            for row, counts in zip(total, both, strict=True):
                row += counts  # [W], or one number if there is one worker
        return total


def first_at_fault(losses: np.ndarray, before: int) -> str:
    """Whose loss was the first that was not finite, as the end of a sentence.

    Args:
        losses: Of a round, ``[W, H]``; at least one is not finite.
        before: Steps before the round.

    Returns:
        The worker and the step; if all losses failed in the first step of a round, what
        came before it; nothing where all failed later.
    """
    bad = ~np.isfinite(losses)
    first = int(bad.any(axis=0).argmax())
    workers = np.flatnonzero(bad[:, first])
    if len(workers) == len(bad):
        if first == 0 < before and min(losses.shape) > 1:
            return (
                f"; that of all workers at step {before + 1}, the first of a round: by "
                "the sync or the local step before it"
            )
        return ""  # they share the parameters or the batch that is at fault
    return f"; first that of worker {workers[0]}, at step {before + first + 1}"


def too_many(bad: int, step: int, first: str) -> str:
    """Why a run ends that has had ``bad`` rounds in a row without a finite loss."""
    return (
        f"training loss not finite for {counted(bad, 'round')} in a row, at step "
        f"{step} or before{first}"
    )
