"""A saved state for another number of workers.

One rule for each kind of array, whatever the strategy; W workers become V:

- What all workers share is kept: parameters after a synchronisation, anchors, outer
  momentum, step counts, the run's random key.
- Parameters that differ between workers become the readout, the model that would have
  been evaluated, on every worker.
- Other numbers that differ become their mean, on every worker: residuals, whose mean is
  what the workers owe the average; local momentum; batch statistics.
- Arrays whose size for one worker depends on W are put together in the order of the
  workers and split into V parts: the residuals of the owners of stripes.
- Whole numbers and keys that differ: worker v of the V takes those of worker v mod W.

Where the readout depends on W, as block momentum's look-ahead with its default eta
does, parameters and anchors are moved so that the readout stays.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parsgd import cluster
from parsgd.checkpoint import leaves
from parsgd.checkpoint.differences import same_leaves
from parsgd.checkpoint.leaves import Leaf
from parsgd.core import TrainState, mean_readout
from parsgd.errors import FolderError
from parsgd.placement import spmd
from parsgd.placement.devices import Placement
from parsgd.placement.first import of_the_first
from parsgd.reducers.exchange import STRIPED
from parsgd.training.engine import Engine
from parsgd.training.worker import Worker
from parsgd.words import counted

KEPT, MEAN, SPLIT = "kept", "mean of the workers", "split anew between the workers"
READOUT, DEALT = "the readout, on every worker", "each from an old worker"
DROPPED, NEW = "dropped, as it has no place any more", "new, as at the start"

Arrays = dict[str, Any]  # numpy
Read = Callable[[Mapping[str, jax.ShapeDtypeStruct]], Mapping[str, Any]]


def resized(
    engine: Engine,
    template: TrainState,
    folder: Path,
    stored: Mapping[str, Leaf],
    workers: int,
    phase: int,
    read: Read,
) -> tuple[TrainState, list[str]]:
    """The state of ``engine``'s workers from that of others.

    Args:
        engine: Of the run that goes on.
        template: A state of it.
        folder: For messages.
        stored: What is in the checkpoint.
        workers: How many workers saved it, W.
        phase: The phase they were in.
        read: Reads the arrays that are named.

    Returns:
        The state, and lines that say what became of what.

    Raises:
        FolderError: With W workers this run would not have the stored arrays, or there
            is no rule for one.
    """
    before = _worker(engine, workers)
    spec = before.stored(before.spec, before.shared)
    same_leaves(stored, leaves.describe(spec, before.shared), folder)
    wanted = {
        name: jax.ShapeDtypeStruct(leaf.shape, np.dtype(leaf.dtype))
        for name, leaf in stored.items()
        if np.prod(leaf.shape)
    }
    old = {name: np.asarray(x) for name, x in read(wanted).items()}
    new = leaves.describe(template, engine.shared)
    count = engine.placement.workers
    out, rules = {}, {}
    for name, leaf in new.items():
        if name in old:
            out[name], rules[name] = _fitted(name, old[name], stored[name], leaf, count)
        elif name not in stored:
            rules[name] = NEW
    rules |= {name: DROPPED for name in stored if name not in new}

    consensus = all(jax.tree.leaves(before.shared.params))
    model: Arrays = {}
    if not consensus or _reads_out(engine, phase):
        with cluster.busy():
            model = _readout(engine, before, spec, old, phase)
        if engine.placement.processes > 1:  # unlike machines may differ in a last bit
            with cluster.together("the model before"):
                model = of_the_first(model, engine.placement)
    for name, x in model.items() if not consensus else ():
        out[name], rules[name] = _spread(x, new[name], count), READOUT
    lines = _lines(rules, workers, count)
    state, moved = _moved(engine, template, out, model, phase)
    return state, lines + moved


def _worker(engine: Engine, workers: int) -> Worker:
    """The run's worker as one of another number of them."""
    worker = engine.worker
    # The state does not depend on the batch, and theirs might not fit the data.
    order = dataclasses.replace(worker.order, workers=workers, worker_batch=1)
    return Worker(worker.task, worker.phases, order=order)


def _fitted(
    name: str, x: np.ndarray, old: Leaf, new: Leaf, count: int
) -> tuple[np.ndarray, str]:
    """An array for ``count`` workers, and by which rule."""
    one = old.shape if old.shared else old.shape[1:]
    wanted = new.shape if new.shared else new.shape[1:]
    differ = [i for i, (a, b) in enumerate(zip(one, wanted, strict=False)) if a != b]
    if len(one) != len(wanted) or len(differ) > 1:
        raise FolderError(
            f"{name} is {list(one)} of each worker in the checkpoint and "
            f"{list(wanted)} with {counted(count, 'worker')}, and there is no rule to "
            "get from one to the other: go on with as many workers as before"
        )
    if f"/{STRIPED}/" in name and not differ:
        # More owners than columns: each has one, so their sizes do not tell.
        differ = [len(one) - 1]
    if differ:
        return _split(x[None] if old.shared else x, new, wanted, count, *differ), SPLIT
    if old.shared:
        return _spread(x, new, count), KEPT
    if (x == x[:1]).all():
        return _spread(x[0], new, count), KEPT
    if jnp.issubdtype(x.dtype, jnp.floating):
        return _spread(x.mean(0, np.float64).astype(x.dtype), new, count), MEAN
    return (x[0] if new.shared else x[np.arange(count) % len(x)]), DEALT


def _spread(x: np.ndarray, new: Leaf, count: int) -> np.ndarray:
    return x if new.shared else np.broadcast_to(x, (count, *x.shape))


def _split(
    x: np.ndarray, new: Leaf, wanted: tuple[int, ...], count: int, axis: int
) -> np.ndarray:
    """``[W, ..., n, ...]`` as ``[V, ..., m, ...]``: zeros added or padding cut off."""
    whole = np.concatenate([*x], axis)
    total = count * wanted[axis]
    missing = max(0, total - whole.shape[axis])
    pad = [(0, missing if i == axis else 0) for i in range(whole.ndim)]
    whole = np.pad(whole, pad).take(np.arange(total), axis)
    parts = np.stack(np.split(whole, count, axis))
    return parts[0] if new.shared else parts


def _reads_out(engine: Engine, phase: int) -> bool:
    return engine.worker.phases[phase].strategy.readout is not mean_readout


def _readout(
    engine: Engine, before: Worker, spec: TrainState, old: Arrays, phase: int
) -> Arrays:
    """The model that the old workers would have evaluated, by name."""
    readout = before.phases[phase].strategy.readout
    place = Placement("vmap", (_roomy(engine),), before.workers)
    fn = spmd.spmd(
        lambda state: readout(state.params, state.strategy),
        place,
        (before.shared,),
        True,
    )
    with jax.default_device(place.devices[0]):
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec)
    state = spmd.put(leaves.unpack(zeros, old), place, before.shared)
    found = jax.jit(fn)(state)
    return _by_name(engine, found)


def _roomy(engine: Engine) -> Any:
    """Where all workers' states have room, which an accelerator may not have."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return engine.placement.own_device


def _by_name(engine: Engine, params: Any) -> Arrays:
    named = [n for n in leaves.names(engine.worker.spec) if n.startswith("params")]
    found = map(np.asarray, jax.tree.leaves(params))
    return dict(zip(named, found, strict=True))


def _placed(engine: Engine, template: TrainState, out: Arrays) -> TrainState:
    # Still on the host: no device has room for all workers' arrays.
    state = leaves.unpack(template, out)
    return spmd.put(state, engine.placement, engine.shared)


def _moved(
    engine: Engine,
    template: TrainState,
    out: Arrays,
    model: Arrays,
    phase: int,
) -> tuple[TrainState, list[str]]:
    """Parameters, and what equals them, moved to where the readout is the old one."""
    state = _placed(engine, template, out)
    if not model:
        return state, []
    read = _by_name(engine, engine.readout(state, phase)[0])
    if all(np.array_equal(read[n], x, equal_nan=True) for n, x in model.items()):
        return state, []
    params = {name: out[name] for name in model}
    copies = _copies(out, params)
    for name, x in model.items():
        moved = (params[name] + (x - read[name])).astype(params[name].dtype)
        out |= {prefix + name.removeprefix("params"): moved for prefix in copies}
    state = _placed(engine, template, out)
    read = _by_name(engine, engine.readout(state, phase)[0])
    apart = max(float(np.abs(read[n] - x).max(initial=0)) for n, x in model.items())
    return state, [
        "the readout depends on the number of workers: parameters and anchors are "
        f"moved so that it stays, to {apart:.1e}"
    ]


def _copies(out: Arrays, params: Arrays) -> list[str]:
    """What the names of all trees begin with that equal the parameters."""
    tails = {name.removeprefix("params"): x for name, x in params.items()}
    first = next(iter(tails))
    prefixes = [name.removesuffix(first) for name in out if name.endswith(first)]
    return [
        prefix
        for prefix in prefixes
        if all(
            prefix + tail in out and np.array_equal(out[prefix + tail], x)
            for tail, x in tails.items()
        )
    ]


def _lines(rules: Mapping[str, str], workers: int, count: int) -> list[str]:
    """One line for each rule that was applied, with what it was applied to."""
    tails = [n.removeprefix("params") for n in rules if n.startswith("params/")]
    lines = []
    for rule in dict.fromkeys(rules.values()):
        groups: dict[str, int] = {}
        for name in (n for n, r in rules.items() if r == rule):
            tail = max((t for t in tails if name.endswith(t)), key=len, default=None)
            group = name.removesuffix(tail) if tail else name.partition("/[")[0]
            groups[group] = groups.get(group, 0) + 1
        named = [g if n == 1 else f"{g} ({n} arrays)" for g, n in groups.items()]
        more = [f"{len(named) - 8} more"] if len(named) > 8 else []
        listed = ", ".join([*named[:8], *more])
        lines.append(f"{workers} -> {count} workers: {rule}: {listed}")
    return lines
