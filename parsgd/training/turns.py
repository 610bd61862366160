"""Lanes that take turns: in which phases, and where they write their results."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from parsgd.core import TrainState
from parsgd.lanes import in_turn
from parsgd.placement.devices import Placement
from parsgd.training.worker import Worker

# Rules of thumb for `better_in_turn`, from timings on a 2-core AMD EPYC (2 x 1 MiB L2,
# 32 MiB L3), of which no record was kept, when lanes did not write in place: speed
# depends on them, results do not.
LANE_CACHE_BYTES = 7 << 20  # all lanes' own state, one device of several
LANE_CACHE_BYTES_ALONE = 4 * LANE_CACHE_BYTES  # the same where there is one device
LANE_BYTES_BEYOND_CACHE = 16 << 20  # one lane's own state: alone it does not fit either
LARGE_STEP_FLOPS = 1e8  # of one worker's gradient


class Turns:
    """Which phases' lanes run their local steps one after the other.

    Leaves that workers share between rounds, but not within them, are stored once, so
    there is no room for each lane's own. Making that room in every round would mean
    filling it with zeros each time; instead each round hands it on to the next.

    Args:
        worker: One worker's program.
        placement: Where the workers are.
    """

    def __init__(self, worker: Worker, placement: Placement):
        self._worker = worker
        phases = range(len(worker.phases))
        self._taken = [False for _ in phases]
        if placement.lanes == 1 or worker.identical or placement.kind == "debug":
            return
        better = functools.partial(
            better_in_turn, placement, step_flops=lambda: worker.step_flops
        )
        self._taken = [
            worker.isolated(phase) and better(lane_bytes=worker.own_bytes(phase))
            for phase in phases
        ]

    def __bool__(self) -> bool:
        return any(self._taken)

    def room(self, phase: int, state: TrainState) -> list[Any]:
        """What rounds of a phase hand on: leaves that lanes may overwrite."""
        if not self._taken[phase]:
            return []
        between = jax.tree.leaves(self._worker.shared)
        within = jax.tree.leaves(self._worker.within[phase])
        leaves = zip(jax.tree.leaves(state), between, within, strict=True)
        return [x for x, before, after in leaves if before and not after]

    def lanes(self, phase: int, room: list[Any]) -> Callable[[Callable], Callable]:
        """How lanes run local steps, see `parsgd.core.run_round`.

        Args:
            phase: Index of the phase.
            room: From the round before; its items are replaced by these steps' own.
        """

        def transformed(local_steps):
            if not self._taken[phase]:
                return local_steps

            def run(*args):
                out = in_turn(lambda room, *args: local_steps(*args))(room, *args)
                room[:] = self.room(phase, out[0])
                return out

            return run

        return transformed


def better_in_turn(
    placement: Placement, *, lane_bytes: int, step_flops: Callable[[], float]
) -> bool:
    """Whether it is faster if lanes run their local steps one after the other.

    On CPU it is where lanes that run together do not fit the cache, or where one
    worker's step is large enough to keep all cores busy. On one device small lanes use
    the cores better together; and a state too large for the cache even alone gains
    nothing by taking turns, but is copied for it. The thresholds are rough.

    Args:
        placement: Where the workers are.
        lane_bytes: What one worker has for itself.
        step_flops: Operations of one worker's gradient; called if it matters.
    """
    if placement.devices[0].platform != "cpu" or lane_bytes > LANE_BYTES_BEYOND_CACHE:
        return False
    alone = len(placement.devices) == 1
    cache = LANE_CACHE_BYTES_ALONE if alone else LANE_CACHE_BYTES
    return lane_bytes * placement.lanes >= cache or step_flops() >= LARGE_STEP_FLOPS
