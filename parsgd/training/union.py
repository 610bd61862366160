"""Whether lanes that share their parameters may merge their batches into one."""

import math
from collections.abc import Callable

import jax

from parsgd.core import TrainState
from parsgd.gradient import BatchUnion
from parsgd.lanes import shared_outputs
from parsgd.tasks import Batch, Task

REUSE = 4  # uses of a weight per example; the MLPs have 0.7 and the CNN 8


def union_of(
    task: Task, spec: TrainState, batch: Batch, flops: Callable[[], float]
) -> BatchUnion:
    """How lanes' batches may be merged.

    They may not if the model has a state, if the loss is random, or if it couples the
    examples of a batch. On CPU the merged batch is processed in parts where each weight
    is used many times per example, as in convolutions: then a small batch is as
    efficient as a large one, and its activations stay in the cache.

    Args:
        task: The task.
        spec: Abstract state of one worker.
        batch: Abstract batch of one worker.
        flops: Operations of its gradient; called only if it matters.

    Returns:
        ``""`` for not at all, ``"whole"`` or ``"parts"``.
    """
    if not task.separable or jax.tree.leaves(spec.model):
        return ""
    key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0)))
    # If only the key depends on the lane, does the loss depend on it?
    args, same = (spec.params, spec.model, batch, key), (True, True, True, False)
    if not shared_outputs(task.loss, 2, args, same)[0]:
        return ""
    if jax.default_backend() != "cpu":
        return "whole"
    weights = sum(math.prod(x.shape) for x in jax.tree.leaves(spec.params))
    once = 6 * weights * batch.x.shape[0]  # forward once, backward twice
    return "parts" if flops() >= REUSE * once else "whole"
