"""How lanes take gradients: of batches merged into one, or one after the other."""

import math
from collections.abc import Callable

import jax

from parsgd.core import TrainState
from parsgd.gradient import BatchUnion
from parsgd.lanes import shared_outputs
from parsgd.tasks import Batch, Task

# Rules of thumb, from timings on 2-core CPUs: speed depends on them, results do not.
REUSE = 4  # uses of a weight per example; the MLPs have 0.7 and the CNN 8
LARGE_FLOPS = 5e7  # of one worker's gradient; the CNN with 10 examples


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
    return "parts" if _reuses_weights(spec, batch, flops) else "whole"


def large_steps(spec: TrainState, batch: Batch, flops: Callable[[], float]) -> bool:
    """Whether a gradient is large, and uses each weight many times per example.

    So it is for convolutions, on CPU. Then lanes of one device are faster if they take
    their gradients one after the other, where these cannot be one: the activations of a
    lane stay in the cache (the CNN with BatchNorm, dropout or compressed gradients: 2
    to 3 times as fast with 32 examples each, and no faster with 4). And synchronous
    workers are faster on a device per core than as lanes of one device, 1.2 to 1.3
    times for the CNN and a small GPT, while MLPs lose a fifth (2 cores of an Intel
    Xeon).

    Args:
        spec: Abstract state of one worker.
        batch: Abstract batch of one worker.
        flops: Operations of its gradient; called only if it matters.
    """
    on_cpu = jax.default_backend() == "cpu"
    return on_cpu and flops() >= LARGE_FLOPS and _reuses_weights(spec, batch, flops)


def _reuses_weights(spec: TrainState, batch: Batch, flops: Callable[[], float]) -> bool:
    weights = sum(math.prod(x.shape) for x in jax.tree.leaves(spec.params))
    once = 6 * weights * batch.x.shape[0]  # forward once, backward twice
    return flops() >= REUSE * once
