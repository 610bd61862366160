"""What the built-in models share: the data set sets their number of classes."""

from numbers import Integral

import jax
from flax import linen as nn

from parsgd.errors import UserError


class Classifier(nn.Module, kw_only=True):
    """A linen module whose number of outputs can be left to the task.

    Attributes:
        classes: Number of logits per example; None is replaced by the data set's
            number of classes when the task is put together.
    """

    classes: int | None = None

    def for_classes(self, classes: int) -> "Classifier":
        """This module, with ``classes`` outputs unless its number is set already."""
        return self if self.classes is not None else self.clone(classes=classes)

    def head(
        self,
        x: jax.Array,
        *,
        use_bias: bool = True,
        kernel_init: nn.initializers.Initializer = nn.linear.default_kernel_init,
    ) -> jax.Array:
        """The output layer, ``[..., D] -> [..., classes]`` logits."""
        if self.classes is None:
            raise UserError(
                f"{type(self).__name__} does not know its number of outputs: set "
                "classes, or hand it to a task, which knows them from its data."
            )
        layer = nn.Dense(
            self.classes, use_bias=use_bias, kernel_init=kernel_init, name="head"
        )
        return layer(x)


def check_sizes(name: str, **sizes: int) -> None:
    """Raise `UserError` for a size below 1, naming the module and the argument."""
    for key, size in sizes.items():
        if not isinstance(size, Integral) or size < 1:
            raise UserError(f"{name}: {key}={size}: it must be at least 1.")


def check_rate(name: str, rate: float) -> None:
    """Raise `UserError` for a dropout rate outside [0, 1)."""
    if not 0.0 <= rate < 1.0:
        raise UserError(f"{name}: dropout={rate}: it must lie in [0, 1).")
