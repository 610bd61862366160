"""How much work a run is: batch sizes, budget, steps and rounds.

Sizes are W workers, ``worker_batch`` b, ``global_batch`` B = W b. A budget is given in
epochs, in samples of all workers together, or in rounds, and becomes a number of steps
of each worker, so that runs with equal budgets see equally many samples.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from parsgd.data.order import Order, Tail, shared_batch
from parsgd.data.shards import Shards, describe_shards
from parsgd.errors import UserError
from parsgd.words import counted

MOST_STEPS = 2**31 - 1  # int32, as in a worker's state


class Origin(NamedTuple):
    """Where a run began, or went on with other batches or workers.

    Attributes:
        step: Optimizer steps done by then.
        round: Rounds done by then.
        batch: Global batches of the data order that count as seen.
    """

    step: int = 0
    round: int = 0
    batch: int = 0


class Plan(NamedTuple):
    """The work of one run.

    Attributes:
        order: Which examples each worker sees at each step.
        local_steps: H.
        steps: Optimizer steps of each worker in the whole run.
        origin: From where the order and the rounds are counted.
    """

    order: Order
    local_steps: int
    steps: int
    origin: Origin = Origin()

    @property
    def samples(self) -> int:
        """Samples of all workers in the whole run."""
        return self.samples_until(self.steps)

    def batch(self, step: int) -> int:
        """Which global batch of the order comes at ``step``."""
        return step - self.origin.step + self.origin.batch

    def samples_until(self, step: int) -> int:
        """Samples that all workers took in the first ``step`` steps; no padding."""
        order = self.order
        epochs, rest = divmod(self.batch(step), order.steps_per_epoch)
        within = min(rest * order.global_batch, order.samples_per_epoch)
        return epochs * order.samples_per_epoch + within

    def epochs_until(self, step: int) -> float:
        """Epochs completed after ``step`` steps."""
        return self.batch(step) / self.order.steps_per_epoch

    @property
    def part_left(self) -> float:
        """How much of the whole run's work comes after its origin, 0 to 1."""
        left = self.steps - self.origin.step
        return left / (left + self.origin.batch)

    def moved(self, origin: Origin, *, in_rounds: bool = False) -> "Plan":
        """The plan of a run that goes on from ``origin``.

        Args:
            origin: Where it goes on.
            in_rounds: Whether the budget was given in rounds: then it counts steps, not
                samples.

        Raises:
            UserError: The budget is done already.
        """
        done = origin.step if in_rounds else origin.batch
        if done >= self.steps:
            raise UserError(
                f"the budget is {counted(self.steps, 'step')}, and the checkpoint has "
                f"done the work of {done}: raise the budget, or choose another folder"
            )
        steps = origin.step + self.steps - done
        return self._replace(steps=steps, origin=origin)

    def batches_of(self, samples: int) -> int:
        """Whole global batches that hold at least ``samples``, over any epochs."""
        order = self.order
        epochs, rest = divmod(samples, order.samples_per_epoch)
        return epochs * order.steps_per_epoch + -(-rest // order.global_batch)

    def describe(self, rounds: int) -> list[str]:
        """Lines for the start of a run: sizes and what becomes of partial batches.

        Args:
            rounds: How many the run has; its phases may have other local steps.
        """
        order = self.order
        lines = [
            f"{counted(order.workers, 'worker')} x worker_batch {order.worker_batch} = "
            f"global_batch {order.global_batch}; "
            f"{counted(order.steps_per_epoch, 'step')} and "
            f"{counted(order.samples_per_epoch, 'sample')} per epoch; "
            f"{counted(self.steps, 'step')}, {self.local_steps} per round",
            order.describe(),
        ]
        if order.fixed:
            lines.append(describe_shards(order.starts, order.label_skew))
        if self.local_steps > self.steps and rounds == 1:
            lines.append(
                f"warning: local_steps={self.local_steps} exceeds the run's "
                f"{self.steps} steps, so workers synchronise once, at the end"
            )
        return lines


def make_plan(
    examples: int,
    *,
    workers: int = 1,
    local_steps: int = 1,
    worker_batch: int | None = None,
    global_batch: int | None = None,
    epochs: float | None = None,
    samples: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    tail: Tail = "drop",
    shards: Shards = "reshuffled",
    label_skew: float = 0.0,
    labels: np.ndarray | None = None,
    micro_batches: int = 1,
) -> Plan:
    """Check the sizes and the budget of a run.

    Args:
        examples: Size of the training set.
        workers: W >= 1.
        local_steps: H >= 1.
        worker_batch: b. Exactly one of the two batch sizes is given.
        global_batch: B = W b.
        epochs: Budget in passes over the data, which may be fractional. Exactly one of
            the three budgets is given.
        samples: Budget in samples of all workers together.
        rounds: Budget in rounds of ``local_steps`` steps.
        seed: Of the data order.
        tail: What becomes of an epoch's last partial batch, see `Order`.
        shards: Whether workers keep their part of the data, see `Order`.
        label_skew: How much fixed shards differ, see `Order`.
        labels: Of the training set, for a ``label_skew`` above 0.
        micro_batches: Parts that each worker's batch is split into.

    Returns:
        The plan from the first step to the last.

    Raises:
        UserError: Sizes that contradict each other or do not fit the data.
    """
    whole = {
        "workers": workers,
        "local_steps": local_steps,
        "seed": seed,
        "worker_batch": worker_batch,
        "global_batch": global_batch,
        "samples": samples,
        "rounds": rounds,
        "micro_batches": micro_batches,
    }
    for name, value in whole.items():
        if value is None:
            continue
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise UserError(f"{name}={value!r}: must be a whole number")
    # NumPy's numbers become plain ones.
    workers, local_steps, seed = int(workers), int(local_steps), int(seed)
    if local_steps < 1:
        raise UserError(f"local_steps={local_steps}: must be 1 or more")
    check_given(
        {"worker_batch": worker_batch, "global_batch": global_batch},
        {"epochs": epochs, "samples": samples, "rounds": rounds},
    )
    if global_batch is not None:
        worker_batch = shared_batch(global_batch, workers)
        _check_fits(int(global_batch), workers, examples)
    assert worker_batch is not None
    order = Order(
        examples=examples,
        workers=workers,
        worker_batch=int(worker_batch),
        seed=seed,
        tail=tail,
        shards=shards,
        label_skew=label_skew,
        labels=labels,
    )
    if micro_batches < 1 or order.worker_batch % micro_batches:
        raise UserError(
            f"micro_batches={micro_batches} does not divide the worker_batch of "
            f"{order.worker_batch}: every part must be equally large"
        )
    steps = _budget(order, local_steps, epochs, samples, rounds)
    if steps > MOST_STEPS:
        raise UserError(
            f"the budget is {steps:,} steps of each worker, and {MOST_STEPS:,} can be "
            "counted: give a smaller one"
        )
    return Plan(order, local_steps, steps)


def check_given(batches: Mapping[str, Any], budgets: Mapping[str, Any]) -> None:
    """Refuse a run without exactly one batch size and exactly one budget.

    Args:
        batches: The two batch sizes by name, None where not given.
        budgets: The three budgets by name, None where not given.

    Raises:
        UserError: None or several are given; says which, and how to take one back.
    """
    batch = "batch size: worker_batch (per worker) or global_batch (of all workers)"
    budget = "budget: epochs, samples (of all workers) or rounds"
    for kinds, wanted in ((batches, batch), (budgets, budget)):
        given = {k: v for k, v in kinds.items() if v is not None}
        if len(given) != 1:
            got = ", ".join(f"{k}={v}" for k, v in given.items()) or "none"
            null = " or ".join(f"{k}=null" for k in given)
            more = f": leave out what is not meant, or set {null} (None in Python)"
            raise UserError(f"give exactly one {wanted}. Got {got}{more * bool(given)}")


def _check_fits(global_batch: int, workers: int, examples: int) -> None:
    """Refuse a global batch that was given and exceeds the data."""
    if not 0 < examples < global_batch:
        return
    multiple = f", a multiple of workers={workers}" if workers > 1 else ""
    advice = f"use {examples // workers * workers} or less{multiple}"
    if workers > examples:
        advice = f"use at most workers={examples} and global_batch={examples}"
    raise UserError(
        f"global_batch={global_batch} is more than the "
        f"{counted(examples, 'training example')}: {advice}"
    )


def _budget(order: Order, local_steps: int, epochs, samples, rounds) -> int:
    given = {"epochs": epochs, "samples": samples, "rounds": rounds}
    ((name, value),) = ((k, v) for k, v in given.items() if v is not None)
    if not value > 0 or not math.isfinite(value):
        raise UserError(f"{name}={value}: the budget must be positive and finite")
    if name == "epochs":
        steps = round(value * order.steps_per_epoch)
    elif name == "samples":
        epochs, rest = divmod(int(value), order.samples_per_epoch)
        steps = epochs * order.steps_per_epoch + rest // order.global_batch
    else:
        steps = int(value) * local_steps
    if steps < 1:
        raise UserError(
            f"{name}={value} is less than one step of global_batch "
            f"{order.global_batch}: raise the budget or lower the batch"
        )
    return int(steps)
