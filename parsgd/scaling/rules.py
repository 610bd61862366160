"""The rules: what a larger batch does to the hyperparameters."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from parsgd.errors import UserError


class Scaling(NamedTuple):
    """A rule with its reference batch.

    Attributes:
        rule: Its name.
        reference_batch: Global batch B0 for which the base values were tuned; None only
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

        Returns:
            ``b1``, ``b2`` and ``eps``, or nothing for rules that leave them alone.

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

    Returns:
        A `Scaling` whose factor is always 1.

    Example:
        >>> none().factor(1024)
        1.0
    """
    del reference_batch, warmup_epochs
    return Scaling("none", None)


def linear(*, reference_batch: int | None, warmup_epochs: float = 5.0) -> Scaling:
    """Learning rate times kappa, with gradual warm-up.

    Args:
        reference_batch: B0 >= 1.
        warmup_epochs: Epochs from the base rate to the scaled one, 0 or more; 5 in the
            paper.

    Returns:
        A `Scaling`.

    Raises:
        UserError: No reference batch, or a negative warm-up.

    Example:
        >>> linear(reference_batch=256).factor(1024)
        4.0

    References:
        Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
        2017, https://arxiv.org/abs/1706.02677.

    Differences from the paper:
        Its momentum correction is left out: it is needed only where the rate is inside
        the velocity. `optax.sgd` multiplies the velocity by the rate, but `optax.lars`
        and `optax.rmsprop` with momentum keep steps that were taken at earlier rates.
    """
    return _scaling("linear", reference_batch, 1.0, warmup_epochs)


def sqrt(*, reference_batch: int | None, warmup_epochs: float = 0.0) -> Scaling:
    """Learning rate times the square root of kappa: keeps the variance of a step.

    Args:
        reference_batch: B0 >= 1.
        warmup_epochs: Epochs from the base rate to the scaled one, 0 or more; none in
            the papers.

    Returns:
        A `Scaling`.

    Raises:
        UserError: No reference batch, or a negative warm-up.

    Example:
        >>> sqrt(reference_batch=256).factor(1024)
        2.0

    References:
        Krizhevsky, "One weird trick for parallelizing convolutional neural networks",
        2014, https://arxiv.org/abs/1404.5997.
        Hoffer et al., "Train longer, generalize better", NeurIPS 2017,
        https://arxiv.org/abs/1705.08741.
    """
    return _scaling("sqrt", reference_batch, 0.5, warmup_epochs)


def adam_sqrt(*, reference_batch: int | None, warmup_epochs: float = 0.0) -> Scaling:
    """The square-root rule for Adam: learning rate, both betas and eps.

    The rule is about the batch whose gradient Adam sees. In methods with local steps
    that is ``worker_batch``, whatever the number of workers, so the rule has no place
    there.

    Args:
        reference_batch: B0 >= 1.
        warmup_epochs: Epochs from the base rate to the scaled one, 0 or more; none in
            the paper.

    Returns:
        A `Scaling`, whose ``hyperparameters`` are those of `scale_adam`.

    Raises:
        UserError: No reference batch, or a negative warm-up.

    Example:
        >>> rule = adam_sqrt(reference_batch=256)
        >>> rule.factor(1024)
        2.0
        >>> base = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}
        >>> {k: round(v, 9) for k, v in rule.hyperparameters(1024, base).items()}
        {'b1': 0.6, 'b2': 0.996, 'eps': 5e-09}

    References:
        Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient
        Algorithms", NeurIPS 2022, https://arxiv.org/abs/2205.10287.
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

    ``1 - b1`` and ``1 - b2`` are multiplied by kappa, ``eps`` by 1 / sqrt(kappa).

    Args:
        kappa: The global batch over the reference batch, above 0.
        b1: Decay of the momentum, in [0, 1).
        b2: Decay of the variance, in [0, 1).
        eps: Added to the root of the variance, > 0.

    Returns:
        The three by name.

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
