"""parsgd itself as a candidate: the loop inside ``fit``, with the shipped models."""

from collections.abc import Callable
from functools import partial

from benchmarks.candidates import BATCH, LOCAL_STEPS, LR, Cell
from benchmarks.measure import Candidate


def ours(cell: Cell, *, seconds: float, counts=(2, 4, 8)) -> list[Candidate]:
    """``fit`` in every placement of a cell.

    Args:
      cell: the work.
      seconds: length of a window.
      counts: CPU devices to try beside one.
    """
    from parsgd import cores

    places = [("fit, auto", "auto", len(cores.usable())), ("fit, vmap", "vmap", 1)]
    places += [
        (f"fit, {kind} {n} x {cell.workers // n}", kind, n)
        for n in counts
        if cell.workers % n == 0
        for kind in ("shard_map", "pmap")
    ]
    return [
        Candidate(name, partial(start, cell, kind, count, seconds), count)
        for name, kind, count in places
    ]


def task(cell: Cell):
    """The cell's task, with the model as users get it."""
    import numpy as np

    import parsgd
    from benchmarks import data
    from benchmarks.models import CNN_RATE, MLPS
    from parsgd.data.dataset import Dataset, Split, Standardize

    images = data.load()
    shape = (28, 28, 1) if cell.model == "cnn" else (784,)
    x = np.array(images.pixels).reshape(-1, *shape)
    y = np.array(images.labels)
    prepare = Standardize(mean=255 * data.MEAN, std=255 * data.STD)
    splits = Split(x, y), Split(x[:1000], y[:1000])
    if cell.model == "cnn":
        model = parsgd.models.CNN(dropout=CNN_RATE if cell.dropout else 0.0)
    else:
        widths, rate = MLPS[cell.model]
        dropout = rate if cell.dropout else 0.0
        model = parsgd.models.MLP(features=widths, dropout=dropout, output_bias=False)
    return parsgd.classification(Dataset("images", *splits, 10, prepare), model)


def start(cell: Cell, kind: str, devices: int, seconds: float) -> Callable[[], int]:
    """Set ``fit``'s loop up; a window is as many of its dispatches as fit in."""
    import time

    import jax
    import optax

    import parsgd
    from parsgd.core import phases
    from parsgd.training.engine import Engine
    from parsgd.training.meter import Meter
    from parsgd.training.plan import make_plan
    from parsgd.training.segments import segments

    inner = optax.sgd(LR) if cell.algorithm != "diloco_adamw" else optax.adamw(1e-3)
    strategy = {
        "sync": parsgd.sync_sgd,
        "local": parsgd.local_sgd,
        "diloco_sgd": parsgd.diloco,
        "diloco_adamw": parsgd.diloco,
    }[cell.algorithm](inner)
    h = 1 if cell.algorithm == "sync" else LOCAL_STEPS
    problem = task(cell)
    plan = make_plan(
        len(problem.data.train.x),
        workers=cell.workers,
        worker_batch=BATCH,
        local_steps=h,
        rounds=10**6,
    )
    schedule = phases(strategy)
    count = None if kind in ("auto", "vmap") else devices
    engine = Engine(problem, schedule, order=plan.order, kind=kind, devices=count)
    (part,) = segments(plan, schedule)
    meter = Meter(plan, engine, [part], 3, None)
    state = engine.init(jax.random.key(0))

    def dispatch(index, weight, count):
        nonlocal state
        # As in `fit`, which measures the spread only in rounds before an evaluation.
        outcome = engine.run(state, part.phase, index, weight, count, measure=False)
        state = outcome.state
        meter.add(part, count, outcome)
        meter.progress()

    dispatches = meter.dispatches(part)
    for _ in range(3):  # compilation, then the speed that paces the dispatches
        dispatch(*next(dispatches))

    def window() -> int:
        before, end = meter.step, time.perf_counter() + seconds
        while time.perf_counter() < end:
            dispatch(*next(dispatches))
        return (meter.step - before) * plan.order.global_batch

    return window
