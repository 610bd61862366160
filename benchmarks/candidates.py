"""The candidates of every cell: an algorithm, a model and a number of workers."""

import itertools
from functools import partial
from typing import NamedTuple

from benchmarks import torch_ddp
from benchmarks.measure import Candidate, repeated

BATCH = 32
LOCAL_STEPS = 8
LR = 0.01
TRY_STEPS = 16  # of the dispatch that shows how long a step takes
ALGORITHMS = ("sync", "local", "diloco_sgd", "diloco_adamw")
MODELS = ("mlp_258k", "mlp_6_9m", "cnn")


class Cell(NamedTuple):
    """One comparison: all candidates of a cell do the same work."""

    algorithm: str
    model: str
    workers: int
    dropout: bool = False

    @property
    def name(self) -> str:
        """As in results and in ``--only``."""
        dropout = "_dropout" if self.dropout else ""
        return f"{self.algorithm}/{self.model}{dropout}/w{self.workers}"


def handwritten(cell: Cell, *, seconds: float, counts=(2, 4, 8)) -> list[Candidate]:
    """The hand-written loops of a cell, on one device and on several.

    Args:
      cell: the work.
      seconds: length of a window.
      counts: CPU devices to try beside one.
    """
    forms = ("patches", "planes") if cell.model == "cnn" else ("patches",)
    counts = [n for n in counts if cell.workers % n == 0]
    variants = _sync(cell, counts) if cell.algorithm == "sync" else _local(cell, counts)
    made = []
    for (name, devices, choices), form in itertools.product(variants, forms):
        name += f", {form}" if cell.model == "cnn" else ""
        setup = partial(start, cell, form, devices, choices, seconds)
        made.append(Candidate(name, setup, devices))
    if cell.model == "cnn" and cell.algorithm == "sync":
        # lax.conv is slow inside a loop: one dispatch is one step.
        choices = {"gradient": "one_batch", "scanned": False}
        setup = partial(start, cell, "conv", 1, choices, seconds)
        made.append(Candidate("one batch, conv, a dispatch per step", setup, 1))
    return made


def peers(cell: Cell, *, seconds: float) -> list[Candidate]:
    """PyTorch DDP, for sync SGD on two workers."""
    if (cell.algorithm, cell.workers) != ("sync", 2):
        return []
    size = {"workers": 2, "batch": BATCH, "lr": LR, "seconds": seconds}
    setup = partial(torch_ddp.start, cell.model, cell.dropout, **size)
    return [Candidate("PyTorch DDP, 2 processes", setup, 0)]


def rounds(cell: Cell, local_steps: int, step_seconds: float) -> int:
    """Rounds of a dispatch, as many as one of `fit` has: each start costs time.

    Args:
      cell: the work.
      local_steps: H of a round.
      step_seconds: of one step.
    """
    from parsgd.training.engine import INDICES_PER_DISPATCH, STEPS_PER_DISPATCH
    from parsgd.training.meter import SECONDS_PER_DISPATCH

    room = INDICES_PER_DISPATCH // (cell.workers * BATCH * local_steps)
    wanted = int(SECONDS_PER_DISPATCH / step_seconds / local_steps)
    return max(1, min(STEPS_PER_DISPATCH // local_steps, room, wanted))


def _sync(cell: Cell, counts: list[int]) -> list[tuple]:
    one = [
        ("one device, vmapped gradients", 1, {"gradient": "vmapped"}),
        ("one device, gradient of mean", 1, {"gradient": "of_mean"}),
        ("one device, one batch", 1, {"gradient": "one_batch"}),
    ]
    if cell.model == "cnn":
        choices = {"gradient": "one_batch", "micro": 16}
        one.append(("one device, one batch by 16", 1, choices))
        choices = {"gradient": "in_turn"}
        one.append(("one device, gradients in turn", 1, choices))
    return one + [
        (f"{n} devices x {cell.workers // n}, {words}", n, {"gradient": gradient})
        for n in counts
        for gradient, words in (
            ("of_mean", "gradient of mean"),
            ("one_batch", "one batch"),
            ("in_turn", "gradients in turn"),
        )
        if gradient != "in_turn" or (cell.model == "cnn" and n < cell.workers)
    ]


def _local(cell: Cell, counts: list[int]) -> list[tuple]:
    lanes = ["vmapped", "serial"] + (["unrolled"] if cell.workers <= 8 else [])
    variants = [(f"one device, {kind} lanes", 1, {"lanes": kind}) for kind in lanes]
    for n in counts:
        each = cell.workers // n
        for kind in ("vmapped", "serial") if each > 1 else ("serial",):
            name = f"{n} devices x {each}" + (f" {kind} lanes" if each > 1 else "")
            variants.append((name, n, {"lanes": kind}))
    return variants


def start(cell: Cell, form: str, devices: int, choices: dict, seconds: float):
    """Set a hand-written loop up; returns its window."""
    import time

    import jax
    import numpy as np

    from benchmarks import baselines, data, models
    from benchmarks.optimizers import adamw, nesterov, sgd

    model = models.build(cell.model, dropout=cell.dropout, convolution=form)
    loss = models.cross_entropy(model)
    size = {"workers": cell.workers, "batch": BATCH, "devices": devices}
    h = 1 if cell.algorithm == "sync" else LOCAL_STEPS
    if cell.algorithm == "sync":
        loop = baselines.sync(model.params, loss, sgd(LR), **size, **choices)
    else:
        inner = adamw(1e-3) if cell.algorithm == "diloco_adamw" else sgd(LR)
        outer = None if cell.algorithm == "local" else nesterov(0.7, 0.9)
        size["local_steps"] = h
        loop = baselines.local(model.params, loss, inner, outer, **size, **choices)
    images = data.load()
    pixels = jax.device_put(images.pixels, loop.replicated)
    labels = jax.device_put(images.labels, loop.replicated)
    state = loop.state

    def dispatches(count: int):
        shape = (count, *loop.shape)
        order = _permutations(len(images.labels), int(np.prod(shape)))

        def dispatch() -> int:
            nonlocal state
            index = jax.device_put(next(order).reshape(shape), loop.index)
            state = jax.block_until_ready(loop.run(state, pixels, labels, index))
            return index.size

        return dispatch

    if not choices.get("scanned", True):  # one step is all that it can
        return repeated(dispatches(1), seconds=seconds)
    tried = TRY_STEPS // h
    first = dispatches(tried)
    first()
    begin = time.perf_counter()
    first()
    step_seconds = (time.perf_counter() - begin) / tried / h
    return repeated(dispatches(rounds(cell, h, step_seconds)), seconds=seconds)


def _permutations(examples: int, count: int):
    """Blocks of ``count`` int32 indices, from one permutation after the other."""
    import numpy as np

    rng, left = np.random.default_rng(0), np.empty(0, np.int32)
    while True:
        while len(left) < count:
            left = np.concatenate([left, rng.permutation(examples).astype(np.int32)])
        yield left[:count]
        left = left[count:]
