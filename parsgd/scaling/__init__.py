"""Batch and learning-rate rules: what a larger batch does to the learning rate.

A base learning rate was tuned for a *reference batch* B0. For a global batch B a rule
multiplies hyperparameters by functions of ``kappa = B / B0``:

=============  ======================  ============================================
rule           learning rate           besides
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

from parsgd.scaling.rates import Schedule, learning_rate, step_decay
from parsgd.scaling.rules import Scaling, adam_sqrt, linear, none, scale_adam, sqrt

__all__ = [
    "Scaling",
    "Schedule",
    "adam_sqrt",
    "learning_rate",
    "linear",
    "none",
    "scale_adam",
    "sqrt",
    "step_decay",
]
