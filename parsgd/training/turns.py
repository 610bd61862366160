"""Lanes that take turns: in which phases, and where they write what they leave."""

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

    What workers share between rounds and have apart within them has no place where each
    lane has its own. Made anew in every round, that room would be filled with zeros
    first; so rounds hand it on to each other.

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
            better_in_turn, placement, step_flops=worker.step_flops
        )
        self._taken = [
            worker.isolated(phase) and better(lane_bytes=worker.own_bytes(phase))
            for phase in phases
        ]

    def __bool__(self) -> bool:
        return any(self._taken)

    def room(self, phase: int, state: TrainState) -> list[Any]:
        """What rounds of a phase hand on: leaves in the place of which lanes write."""
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
            room: Of the round before; is replaced by what these steps leave.
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
    """Whether lanes had better run their local steps one after the other.

    On CPU they had where lanes that run together fall out of the cache, or where a
    worker's large step fills the cores by itself. On one device small lanes share the
    cores better together, and a state that is too large even alone gains nothing from
    its turn but is copied for it. The thresholds are rough.

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
