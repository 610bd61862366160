"""Batch and learning-rate rules: what a larger batch does to the learning rate.

A base learning rate was tuned for a *reference batch* B0. For a global batch B, with
``kappa = B / B0``, a rule multiplies hyperparameters:

=============  ======================  ============================================
rule           learning rate           with it
=============  ======================  ============================================
``none``       1
``linear``     kappa                   gradual warm-up over 5 epochs, where kappa > 1
``sqrt``       sqrt(kappa)
``adam_sqrt``  sqrt(kappa)             1 - b1 and 1 - b2 by kappa, eps by
                                       1 / sqrt(kappa)
=============  ======================  ============================================

At ``B = B0`` every factor is exactly 1. The learning rate of step t (optimizer steps
of each worker) is ``base * factor(t) * schedule(t)``:

    >>> import optax
    >>> from parsgd import scaling
    >>> rule = scaling.linear(reference_batch=256, warmup_epochs=0)
    >>> rule.factor(1024)
    4.0
    >>> cosine = optax.cosine_decay_schedule(1.0, 1000)
    >>> rate = scaling.learning_rate(0.1, rule.factor(1024), schedule=cosine)
    >>> optimizer = optax.sgd(rate, momentum=0.9)
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import optax

from parsgd.errors import UserError

Schedule: TypeAlias = Callable[[Any], Any]


class Scaling(NamedTuple):
    """A rule with its reference batch.

    Attributes:
        rule: Its name.
        reference_batch: Global batch B0 that the base values were tuned for; None only
            where nothing is scaled.
        power: The learning rate's factor is ``kappa ** power``.
        warmup_epochs: Length of the gradual warm-up, in epochs.
        adam: Whether ``b1, b2, eps`` are scaled too.
    """

    rule: str
    reference_batch: int | None
    power: float = 0.0
    warmup_epochs: float = 0.0
    adam: bool = False

    def kappa(self, global_batch: int) -> float:
        """The global batch over the reference batch; 1 where nothing is scaled."""
        if self.reference_batch is None:
            return 1.0
        return global_batch / self.reference_batch

    def factor(self, global_batch: int) -> float:
        """What the learning rate is multiplied by, after the warm-up."""
        kappa = self.kappa(global_batch)
        return 1.0 if kappa == 1 else kappa**self.power

    def hyperparameters(
        self, global_batch: int, base: Mapping[str, Any]
    ) -> dict[str, float]:
        """The optimizer's other arguments that this rule changes, scaled.

        Args:
            global_batch: B.
            base: The optimizer's arguments at the reference batch.

        Raises:
            UserError: The rule is for Adam and ``base`` lacks ``b1, b2`` or ``eps``, or
                the batch is too large for it.
        """
        if not self.adam:
            return {}
        missing = [name for name in ("b1", "b2", "eps") if base.get(name) is None]
        if missing:
            raise UserError(
                f"scaling={self.rule} scales b1, b2 and eps of Adam, but the optimizer "
                f"has no {', '.join(missing)}: use an optimizer of Adam's family that "
                "states them, or scaling=sqrt"
            )
        return scale_adam(
            self.kappa(global_batch), b1=base["b1"], b2=base["b2"], eps=base["eps"]
        )


def none(*, reference_batch: int | None = None, warmup_epochs: float = 0.0) -> Scaling:
    """The base values for every batch.

    Args:
        reference_batch: Accepted and unused, so that rules can be compared in a sweep.
        warmup_epochs: Likewise: there is nothing to warm up to.
    """
    del reference_batch, warmup_epochs
    return Scaling("none", None)


def linear(*, reference_batch: int | None, warmup_epochs: float = 5.0) -> Scaling:
    """Learning rate times kappa, with gradual warm-up.

    Args:
        reference_batch: B0 >= 1.
        warmup_epochs: Epochs from the base rate to the scaled one; 5 in the paper.

    Raises:
        UserError: No reference batch, or a negative warm-up.

    References:
        Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
        2017. Its momentum correction is needed only where the rate stands inside the
        velocity: `optax.sgd` multiplies the velocity by the rate, but `optax.lars` and
        `optax.rmsprop` with momentum keep steps that were taken at earlier rates.
    """
    return _scaling("linear", reference_batch, 1.0, warmup_epochs)


def sqrt(*, reference_batch: int | None, warmup_epochs: float = 0.0) -> Scaling:
    """Learning rate times the square root of kappa: keeps the variance of a step.

    Args:
        reference_batch: B0 >= 1.
        warmup_epochs: Epochs from the base rate to the scaled one; none in the papers.

    Raises:
        UserError: No reference batch, or a negative warm-up.

    References:
        Krizhevsky, "One weird trick for parallelizing convolutional neural networks",
        2014. Hoffer et al., "Train longer, generalize better", NeurIPS 2017.
    """
    return _scaling("sqrt", reference_batch, 0.5, warmup_epochs)


def adam_sqrt(*, reference_batch: int | None, warmup_epochs: float = 0.0) -> Scaling:
    """The square-root rule for Adam: learning rate, both betas and eps.

    It is about the batch whose gradient Adam sees. In methods with local steps that is
    ``worker_batch``, whatever the number of workers, and nothing calls for this rule.

    Args:
        reference_batch: B0 >= 1.
        warmup_epochs: Epochs from the base rate to the scaled one; none in the paper.

    Raises:
        UserError: No reference batch, or a negative warm-up.

    References:
        Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient
        Algorithms", NeurIPS 2022.
    """
    return _scaling("adam_sqrt", reference_batch, 0.5, warmup_epochs, adam=True)


def _scaling(rule, reference_batch, power, warmup_epochs, adam=False) -> Scaling:
    if reference_batch is None:
        raise UserError(
            f"scaling={rule} needs scaling.reference_batch: the global batch that the "
            "base learning rate was tuned for"
        )
    if not 1 <= reference_batch < math.inf:
        raise UserError(f"scaling.reference_batch={reference_batch}: must be 1 or more")
    if not 0 <= warmup_epochs < math.inf:
        raise UserError(f"scaling.warmup_epochs={warmup_epochs}: must be 0 or more")
    return Scaling(rule, reference_batch, power, warmup_epochs, adam)


def scale_adam(kappa: float, *, b1: float, b2: float, eps: float) -> dict[str, float]:
    """Adam's betas and eps for a batch kappa times as large.

    ``1 - b1`` and ``1 - b2`` grow by kappa, ``eps`` shrinks by sqrt(kappa).

    Raises:
        UserError: A beta would become 0 or less: the batch is beyond the rule.

    Example:
        >>> {k: round(v, 6) for k, v in
        ...  scale_adam(4.0, b1=0.9, b2=0.999, eps=1e-8).items()}
        {'b1': 0.6, 'b2': 0.996, 'eps': 0.0}
    """
    if kappa == 1:
        return {"b1": b1, "b2": b2, "eps": eps}
    largest = 1 / max(1 - b1, 1 - b2)
    if kappa > largest * (1 - 1e-9):  # 1 - 0.9 is not a tenth to the last bit
        raise UserError(
            f"scaling=adam_sqrt: a global batch {kappa:g} times the reference batch "
            f"takes 1 - b to 1 or more (b1={b1}, b2={b2}). Stay below {largest:.4g} "
            "times, raise the reference batch, or use scaling=sqrt"
        )
    return {
        "b1": 1 - kappa * (1 - b1),
        "b2": 1 - kappa * (1 - b2),
        "eps": eps / math.sqrt(kappa),
    }


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
        factor: A rule's factor.
        warmup_steps: T, in optimizer steps of each worker.
        schedule: Relative rate by step, such as ``optax.cosine_decay_schedule(1.0,
            steps)``; None for a constant one.

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
    """Relative rate 1, times ``factor`` at each of the boundaries.

    Args:
        boundaries: Optimizer steps of each worker, at least 1; at one that is there
            twice, as parts of a short run may be, the rate falls twice.
        factor: In (0, 1]; 0.1 is the usual step on image tasks.

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
