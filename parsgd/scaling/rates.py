"""Learning rates over the steps of a run."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import optax

from parsgd.errors import UserError

Schedule: TypeAlias = Callable[[Any], Any]


def learning_rate(
    base: float,
    factor: float = 1.0,
    *,
    warmup_steps: int = 0,
    schedule: Schedule | None = None,
) -> float | Schedule:
    """The learning rate of an optimizer: a number where constant, else a schedule.

    ``lr(t) = base * f(t) * schedule(t)`` with ``f(t) = 1 + (factor - 1) min(t/T, 1)``
    for T warm-up steps: gradual warm-up starts at the *unscaled* rate. It only rises:
    with a factor below 1 the rate is ``base * factor`` from the first step.

    Args:
        base: Rate at the reference batch.
        factor: What a rule multiplies it by, see `Scaling.factor`.
        warmup_steps: T, in optimizer steps of each worker; 0 for no warm-up.
        schedule: Relative rate by step, such as ``optax.cosine_decay_schedule(1.0,
            steps)``; None for a constant one.

    Returns:
        The rate: a number where it is constant, else a function of the step.

    Example:
        >>> rate = learning_rate(0.1, 4.0, warmup_steps=10)
        >>> [round(float(rate(t)), 3) for t in (0, 5, 10, 99)]
        [0.1, 0.25, 0.4, 0.4]
        >>> learning_rate(0.1, 0.5, warmup_steps=10)
        0.05
    """
    warming = warmup_steps > 0 and factor > 1
    if not warming and schedule is None:
        return base * factor

    def rate(step):
        value = base * factor
        if warming:
            done = jnp.minimum(step / warmup_steps, 1.0)
            value = base * (1 + (factor - 1) * done)
        return value if schedule is None else value * schedule(step)

    return rate


def step_decay(*, boundaries: Sequence[int], factor: float = 0.1) -> Schedule:
    """Relative rate 1, multiplied by ``factor`` at each of the boundaries.

    Args:
        boundaries: Optimizer steps of each worker, at least 1. Where one is listed
            twice, as fractions of a short run may be, the rate falls twice.
        factor: In (0, 1]; 0.1 is usual on image tasks.

    Returns:
        An optax schedule: from the step to the relative rate.

    Raises:
        UserError: ``factor`` is outside (0, 1], or a boundary is below 1.

    Example:
        >>> decay = step_decay(boundaries=[10, 20])
        >>> [round(float(decay(t)), 4) for t in (0, 11, 21)]
        [1.0, 0.1, 0.01]
    """
    if not 0 < factor <= 1:
        raise UserError(f"schedule.factor={factor}: must be in (0, 1]")
    if any(step < 1 for step in boundaries):
        raise UserError(f"schedule.boundaries={[*boundaries]}: must be 1 or more")
    times = Counter(map(int, boundaries))
    falls = {step: factor**count for step, count in times.items()}
    return optax.piecewise_constant_schedule(1.0, falls)
