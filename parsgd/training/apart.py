"""How far the workers are apart before they synchronise."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from parsgd.core import Params, spread
from parsgd.placement.devices import Placement
from parsgd.training.worker import Worker


class Apart:
    """What rounds keep to measure the workers' spread by, see `parsgd.core.spread`.

    Within one process that is the spread itself. Between processes it is the
    parameters, whose spread is measured when the clock has stopped: over slow links
    that takes as long as a synchronisation, which no algorithm asks for.

    Args:
        worker: One worker's program.
        placement: Where the workers are.
    """

    def __init__(self, worker: Worker, placement: Placement):
        self._worker = worker
        self.later = placement.processes > 1 and not worker.identical

    def shared(self, phase: int) -> Any:
        """Which parts of what is kept are equal on all workers."""
        return self._worker.within[phase].params if self.later else True

    def start(self, params: Params) -> Any:
        """What is there before the first round."""
        return jax.tree.map(jnp.zeros_like, params) if self.later else jnp.float32(0)

    def look(self, measure: jax.Array, before: Any) -> Callable[[Params], Any]:
        """What a round keeps of the parameters that it synchronises.

        Args:
            measure: Whether to keep anything of this round.
            before: What the round before has kept.
        """
        if self._worker.identical:
            return lambda params: before
        if self.later:
            return lambda params: lax.cond(
                measure, lambda new, old: new, lambda new, old: old, params, before
            )
        return lambda params: lax.cond(
            measure, spread, lambda _: jnp.float32(0), params
        )
