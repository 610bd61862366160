"""Dense networks: logistic regression, the MLP, and two presets of it."""

from collections.abc import Sequence

import jax
from flax import linen as nn

from parsgd.models.classifier import Classifier, check_rate, check_sizes


class LogisticRegression(Classifier, kw_only=True):
    """Softmax regression, ``logits = x W + c``: strictly convex with a penalty.

    Starts from zero, so every seed has the same starting point.

    Attributes:
        classes: Number of logits; None takes the data set's number of classes.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits ``[b, classes]`` of inputs ``[b, ...]``, which are flattened."""
        return self.head(
            x.reshape(x.shape[0], -1), kernel_init=nn.initializers.zeros_init()
        )


class MLP(Classifier, kw_only=True):
    """Dense layers with ReLU and dropout, then one linear layer of logits.

    Attributes:
        features: Widths of the hidden layers; an empty list is a linear model.
        dropout: Rate after every hidden layer, in [0, 1), drawn in training only.
        output_bias: Whether the last layer has a bias.
        classes: Number of logits; None takes the data set's number of classes.

    Raises:
        UserError: A width below 1 or a rate outside [0, 1).

    Example:
        >>> import jax.numpy as jnp
        >>> net = MLP(features=[32], classes=10)
        >>> net.init_with_output(jax.random.key(0), jnp.ones((4, 8, 8, 1)))[0].shape
        (4, 10)
    """

    features: Sequence[int] = (64,)
    dropout: float = 0.0
    output_bias: bool = True

    def __post_init__(self):
        # A tuple: modules are compared and hashed, lists from a YAML file are not.
        self.features = tuple(self.features)
        for width in self.features:
            check_sizes("MLP", features=width)
        check_rate("MLP", self.dropout)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Logits ``[b, classes]`` of inputs ``[b, ...]``, which are flattened."""
        x = x.reshape(x.shape[0], -1)
        for width in self.features:
            x = nn.relu(nn.Dense(width)(x))
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return self.head(x, use_bias=self.output_bias)


def mlp_258k(classes: int | None = None) -> MLP:
    """A medium network: dense 256-128-64-out, dropout 0.2.

    Named after its 258,432 parameters for 847 inputs and 3 outputs, as with
    ``parsgd.synthetic(features=847, classes=3)``. On 28 x 28 images with 10 classes the
    same layers have 242,752. The last layer has no bias.

    Args:
        classes: Number of logits; None takes the data set's number of classes.
    """
    return MLP(features=(256, 128, 64), dropout=0.2, output_bias=False, classes=classes)


def mlp_6_9m(classes: int | None = None) -> MLP:
    """A large network: dense 1024-1024-512-512-256-out, dropout 0.3.

    Named after its 6,885,376 parameters for 4,800 inputs and 3 outputs, as with
    ``parsgd.synthetic(features=4800, classes=3)``. On 28 x 28 images with 10 classes
    the same layers have 2,774,784. The last layer has no bias.

    Args:
        classes: Number of logits; None takes the data set's number of classes.
    """
    return MLP(
        features=(1024, 1024, 512, 512, 256),
        dropout=0.3,
        output_bias=False,
        classes=classes,
    )
