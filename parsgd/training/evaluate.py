"""Exact averages of a model's metrics over a split of the data."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parsgd.data.dataset import Split
from parsgd.tasks import Batch, Task

CHUNK = 2000
MEMORY = 2**30


def evaluator(
    task: Task,
    split: Split,
    *,
    limit: int | None = None,
    device: Any = None,
    devices: Sequence[Any] | None = None,
) -> Callable[[Any, Any], dict[str, float]]:
    """A function ``(params, model_state) -> {metric: mean over the split's examples}``.

    Every example counts once, whatever the chunk size: metrics are summed with weight 0
    on padding and divided by the number of examples. Chunks are of about CHUNK rows a
    device, or of as many as the compiler says need no more than MEMORY bytes of
    activations: a language model with a long context has gigabytes for 2,000 rows.

    Args:
        task: Whose ``metrics`` are averaged.
        split: The examples; they are moved to the device once.
        limit: Use this many of them, evenly spaced over the split; None for all.
        device: Where to evaluate.
        devices: Or on all of these, each an equal part of the rows.
    """
    x, y = split
    if limit is not None and len(x) > limit:
        keep = np.linspace(0, len(x) - 1, limit).astype(np.int64)
        x, y = x[keep], y[keep]
    count = len(x)
    parts = len(devices) if devices else 1
    rows_to, model_to = device, device
    if devices and parts > 1:
        mesh = Mesh(np.array(devices), ("rows",))
        rows_to = NamedSharding(mesh, PartitionSpec("rows"))
        model_to = NamedSharding(mesh, PartitionSpec())

    def pieces(most: int) -> list[Any]:
        # Equal chunks of at most so many rows a device: one program, little padding.
        size = -(-count // (-(-count // (most * parts)) * parts)) * parts
        chunks = []
        for start in range(0, count, size):
            rows = np.minimum(np.arange(start, start + size), count - 1)
            weight = (np.arange(start, start + size) < count).astype(np.float32)
            chunks.append(jax.device_put((x[rows], y[rows], weight), rows_to))
        return chunks

    @jax.jit
    def sums(params, model, chunk):
        x, y, weight = chunk
        values = task.metrics(params, model, Batch(x, y))
        # where, not a product: a non-finite metric of a padding row must not count.
        # In float32: sums of half-precision metrics would lose, or overflow.
        wide = {k: v.astype(jnp.float32) for k, v in values.items()}
        return {k: jnp.sum(jnp.where(weight > 0, v, 0.0)) for k, v in wide.items()}

    chunks = pieces(CHUNK)
    programs: dict[Any, Any] = {}

    def fitting(params: Any, model: Any) -> Any:
        nonlocal chunks
        while True:
            program = sums.lower(params, model, chunks[0]).compile()
            memory = program.memory_analysis()
            need = memory.temp_size_in_bytes if memory is not None else 0
            rows = len(chunks[0][2]) // parts
            if need <= MEMORY or rows == 1:
                return program
            chunks = pieces(max(1, min(rows - 1, rows * MEMORY // need)))

    def evaluate(params: Any, model: Any) -> dict[str, float]:
        if devices:
            params, model = jax.device_put((params, model), model_to)
        leaves, treedef = jax.tree.flatten((params, model))
        kind = treedef, tuple((x.shape, x.dtype) for x in leaves)
        if kind not in programs:
            programs.clear()  # chunks may get another size
            programs[kind] = fitting(params, model)
        found = [programs[kind](params, model, chunk) for chunk in chunks]
        return {k: sum(float(part[k]) for part in found) / count for k in found[0]}

    return evaluate


@jax.jit
def all_finite(tree: Any) -> jax.Array:
    """Whether all numbers of all arrays are."""
    found = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]
    return jnp.stack(found).all() if found else jnp.array(True)


def score_of(record: Mapping[str, Any]) -> float:
    """What ranks an evaluation: accuracy, or the loss with its sign turned."""
    accuracy = record.get("test_accuracy")
    if accuracy is not None:
        return accuracy
    loss = record.get("test_loss")  # stored as null where it is not finite
    return math.nan if loss is None else -loss


def best_score(records: Sequence[Mapping[str, Any]]) -> float:
    """The best `score_of` of a run's evaluations, or NaN."""
    scores = [score for score in map(score_of, records) if math.isfinite(score)]
    return max(scores, default=math.nan)
