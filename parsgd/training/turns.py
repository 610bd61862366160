"""Lanes that take turns: in which phases, and where they write their results."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from parsgd import cluster, cores
from parsgd.core import TrainState
from parsgd.lanes import in_turn
from parsgd.placement.devices import Placement
from parsgd.training.worker import Worker

# For `better_in_turn`, one lane's own state from which it is. Of MLPs with local SGD, 2
# to 64 lanes and batches of 8 to 128 on a 2-core Intel Xeon, lanes in turn had, on
# devices of one core, 0.84 to 0.95 of the speed of lanes together up to 72 KiB, 0.95 to
# 1.03 of it with 104 KiB, and 0.99 to 1.57 of it with 0.2 to 32 MiB. On one device of
# two cores they had 0.69 to 0.95 of it up to 5 MiB, 1.05 with 11 MiB and 1.00 with 32.
LANE_BYTES = 128 << 10
LANE_BYTES_OF_SEVERAL_CORES = 8 << 20


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
            better_in_turn, placement, core_each=core_each(placement)
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


def better_in_turn(placement: Placement, *, lane_bytes: int, core_each: bool) -> bool:
    """Whether it is faster if lanes run their local steps one after the other.

    On CPU it is, but for tiny models, where a device has one core: together, lanes
    multiply many small matrices, which is slower than large ones in turn. A device
    with several cores shares the lanes that run together among them. Of one lane only
    the passes over a large state use them all.

    Args:
        placement: Where the workers are.
        lane_bytes: What one worker has for itself.
        core_each: Whether no device has more than one core, see `core_each`.
    """
    if placement.devices[0].platform != "cpu":
        return False
    return lane_bytes >= (LANE_BYTES if core_each else LANE_BYTES_OF_SEVERAL_CORES)


def core_each(placement: Placement) -> bool:
    """Whether no device has more than one core; what process 0 finds holds for all."""
    devices = len(placement.devices) // placement.processes
    own = len(cores.usable()) // cluster.sharing_cores() // devices <= 1
    if placement.processes == 1:
        return own
    return cluster.agree("a core for each device", f"{own:d}") == "1"
