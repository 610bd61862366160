"""Where the training data are: whole on each device, or each shard on its own."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from parsgd.data.order import Order
from parsgd.placement import spmd
from parsgd.placement.devices import Placement


class OnDevices:
    """The training set in the devices' memory.

    Where shard_map runs on several devices and shards are fixed, a device holds the
    shards of its own workers, one after the other; otherwise it holds everything.

    Args:
        order: Which examples the workers see.
        placement: Where the workers are.

    Attributes:
        shared: For `spmd`: what the workers share of ``x`` and ``y``.
    """

    def __init__(self, order: Order, placement: Placement):
        self._placement = placement
        count = len(placement.devices)
        self._apart = order.fixed and placement.kind == "shard_map" and count > 1
        self.shared = (spmd.PER_DEVICE if self._apart else True,) * 2
        if not self._apart:
            return
        starts = order.starts[:: placement.lanes]
        self._parts = [order.rows[a:b] for a, b in itertools.pairwise(starts)]
        # Where an example is on its device.
        self._position = np.empty(order.examples, np.int32)
        for part in self._parts:
            self._position[part] = np.arange(len(part))

    def place(self, data: Sequence[np.ndarray]) -> tuple[Any, ...]:
        """``x`` and ``y`` on the devices."""
        if not self._apart:
            return spmd.put(tuple(data), self._placement, self.shared)
        size = max(len(part) for part in self._parts)
        # Equally many for each; the padding of a shorter part is never read.
        parts = [np.resize(part, size) for part in self._parts]
        return tuple(spmd.scattered(x, parts, self._placement) for x in data)

    def local(self, index: np.ndarray) -> np.ndarray:
        """Where the examples ``index [W, ...]`` are on their workers' devices."""
        return self._position[index] if self._apart else index
