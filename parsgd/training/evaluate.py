"""Exact averages of a model's metrics over a split of the data."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from parsgd import cluster
from parsgd.core import Params, Phase, State, TrainState
from parsgd.data.dataset import Split
from parsgd.errors import stage
from parsgd.tasks import Batch, Task

if TYPE_CHECKING:  # they import this module
    from parsgd.training.engine import Engine
    from parsgd.training.meter import Record

CHUNK = 2000  # rows; larger chunks are no faster
MEMORY = 2**30  # bytes, which any machine that trains can spare


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
    on padding and divided by the number of examples. A chunk has about CHUNK rows per
    device, or fewer where the compiler says that their activations need more than
    MEMORY bytes: a language model with a long context needs gigabytes for 2,000 rows.

    Args:
        task: Whose ``metrics`` are averaged.
        split: The examples; they are moved to the device once.
        limit: Use this many of them, evenly spaced over the split; None for all.
        device: Where to evaluate.
        devices: Instead, evaluate on all of these, each an equal part of the rows.
    """
    x, y = split
    if limit is not None and len(x) > limit:
        keep = np.linspace(0, len(x) - 1, limit).astype(np.int64)
        x, y = x[keep], y[keep]
    count = len(x)
    parts = len(devices) if devices else 1
    rows_to: Any = None if device is None else SingleDeviceSharding(device)
    model_to: Any = rows_to
    if devices and parts > 1:
        mesh = Mesh(np.array(devices), ("rows",))
        rows_to = NamedSharding(mesh, PartitionSpec("rows"))
        model_to = NamedSharding(mesh, PartitionSpec())

    def chunks_of(most: int) -> list[tuple[np.ndarray, Any]]:
        """Rows and weights of equal chunks: one program, little padding."""
        size = -(-count // (-(-count // (most * parts)) * parts)) * parts
        numbers = np.arange(-(-count // size) * size).reshape(-1, size)
        return [(np.minimum(n, count - 1), np.float32(n < count)) for n in numbers]

    @jax.jit
    def sums(params, model, chunk):
        x, y, weight = chunk
        values = task.metrics(params, model, Batch(x, y))
        # where, not a product: a non-finite metric of a padding row must not count.
        # In float32: sums of half-precision metrics would lose digits, or overflow.
        wide = {k: v.astype(jnp.float32) for k, v in values.items()}
        return {k: jnp.sum(jnp.where(weight > 0, v, 0.0)) for k, v in wide.items()}

    def fitted(params: Any, model: Any) -> tuple[Any, list[Any]]:
        """A program whose activations fit, and the chunks for it, on the devices."""
        most, before = CHUNK, 0
        while True:
            chosen = chunks_of(most)
            rows = len(chosen[0][0])
            chunk = tuple(
                jax.ShapeDtypeStruct((rows, *v.shape[1:]), v.dtype, sharding=rows_to)
                for v in (x, y, chosen[0][1])
            )
            program = sums.lower(params, model, chunk).compile()
            memory = program.memory_analysis()
            need = memory.temp_size_in_bytes if memory is not None else 0
            # Memory that half as many rows need too does not come from the rows.
            alike = before and need > 0.75 * before
            if need <= MEMORY or rows <= parts or alike:
                break
            each, before = rows // parts, need
            most = max(1, min(each // 2, each * MEMORY // need))
        put = [jax.device_put((x[r], y[r], w), rows_to) for r, w in chosen]
        return program, put

    ready: tuple[Any, Any, list[Any]] = (None, None, [])

    def evaluate(params: Any, model: Any) -> dict[str, float]:
        nonlocal ready
        if devices:
            params, model = jax.device_put((params, model), model_to)
        leaves, treedef = jax.tree.flatten((params, model))
        kind = treedef, tuple((v.shape, v.dtype) for v in leaves)
        if ready[0] != kind:
            with cluster.busy():
                ready = (kind, *fitted(params, model))
        _, program, chunks = ready
        found = []
        for chunk in chunks:
            found.append(program(params, model, chunk))
            if parts > 1:  # running ahead deadlocks collectives between CPU devices
                jax.block_until_ready(found[-1])
        return {k: sum(float(part[k]) for part in found) / count for k in found[0]}

    return evaluate


class Evaluation:
    """Scores a state's readout on both splits; keeps the last model and the time."""

    def __init__(self, task: Task, engine: "Engine", train_examples: int):
        device = engine.placement.own_device
        self._engine = engine
        self._test = evaluator(task, task.data.test, device=device)
        self._train = evaluator(
            task, task.data.train, limit=train_examples, device=device
        )
        self.seconds = 0.0
        self.model: tuple[Params, State] | None = None

    def __call__(self, state: TrainState, phase: int) -> "Record":
        """The scores of what ``state`` reads out as."""
        start = time.perf_counter()
        self.model = self._engine.readout(state, phase)
        with stage("evaluation"):
            test, train = self._test(*self.model), self._train(*self.model)
        scores = {"train_loss": train["loss"]}
        scores |= {f"test_{name}": value for name, value in test.items()}
        # Processes on unlike machines may differ in the last bit, and then act apart.
        scores = {name: self._engine.agreed(x) for name, x in scores.items()}
        self.seconds += time.perf_counter() - start
        return scores


def readout_cautions(phases: Sequence[Phase], state: Any) -> list[str]:
    """A line on optimizers that mean another model than the one that is evaluated.

    Args:
        phases: The algorithm's phases.
        state: The strategy's state, abstract.
    """

    def free(node):
        return isinstance(node, optax.contrib.ScheduleFreeState)

    readouts = [phase.strategy.readout for phase in phases]
    shipped = any(x.__module__.startswith("parsgd.") for x in readouts)  # not of x
    if not shipped or not any(map(free, jax.tree.leaves(state, is_leaf=free))):
        return []
    return [
        "warning: this schedule-free optimizer is evaluated at y, where it takes its "
        "gradients, not at its average x: give the strategy a readout of x, from "
        "optax.contrib.schedule_free_eval_params, and do without an outer loop"
    ]


@jax.jit
def all_finite(tree: Any) -> jax.Array:
    """Whether all numbers of all arrays are finite."""
    found = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]
    return jnp.stack(found).all() if found else jnp.array(True)


def no_nan(tree: Any) -> jax.Array:
    """Whether no number of any array is NaN."""
    floats = (x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating))
    found = [~jnp.isnan(x).any() for x in floats]
    return jnp.stack(found).all() if found else jnp.array(True)


def score_of(record: Mapping[str, Any]) -> float:
    """What ranks an evaluation: the accuracy, or else the negative loss."""
    accuracy = record.get("test_accuracy")
    if accuracy is not None:
        return accuracy
    loss = record.get("test_loss")  # stored as null where it is not finite
    return math.nan if loss is None else -loss


def best_score(records: Sequence[Mapping[str, Any]]) -> float:
    """The best `score_of` of a run's evaluations, or NaN."""
    scores = [score for score in map(score_of, records) if math.isfinite(score)]
    return max(scores, default=math.nan)
