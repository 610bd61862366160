"""Convolutions as patches and one matrix product, and the CNN built on them.

XLA's CPU convolution is fast on its own but about 8 times slower inside ``lax.scan``,
and kernels that differ between vmapped workers turn it into a grouped convolution,
which is slower still. A matrix product has neither problem::

    patches [b, h, w, kh * kw * C]  @  kernel [kh * kw * C, F]  ->  [b, h, w, F]
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from parsgd.errors import UserError
from parsgd.models.classifier import Classifier, check_rate, check_sizes
from parsgd.models.pooling import max_pool

Padding = str | int | Sequence[tuple[int, int]]


def patches(
    x: jax.Array,
    kernel_size: tuple[int, int],
    strides: tuple[int, int],
    padding: Sequence[tuple[int, int]],
) -> jax.Array:
    """All windows of the images, flattened: ``[b, H, W, C] -> [b, h, w, kh * kw * C]``.

    Made of static slices along the rows and then, of these, along the columns:
    ``kh + kw`` copies of longer runs instead of ``kh * kw`` of short ones, forwards and
    in the gradient.

    Args:
        x: Images ``[b, H, W, C]``.
        kernel_size: ``(kh, kw)``.
        strides: Steps of the window, ``(sh, sw)``.
        padding: Zeros added ``((top, bottom), (left, right))``.

    Example:
        >>> x = jnp.arange(9.0).reshape(1, 3, 3, 1)
        >>> patches(x, (2, 2), (1, 1), ((0, 0), (0, 0)))[0, 1, 1].tolist()
        [4.0, 5.0, 7.0, 8.0]
    """
    (kh, kw), (sh, sw) = kernel_size, strides
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    height, width = (x.shape[1] - kh) // sh + 1, (x.shape[2] - kw) // sw + 1
    end = (width - 1) * sw + 1
    rows = jnp.concatenate([x[:, :, j : j + end : sw] for j in range(kw)], axis=-1)
    end = (height - 1) * sh + 1
    return jnp.concatenate([rows[:, i : i + end : sh] for i in range(kh)], axis=-1)


class PatchConv(nn.Module):
    """A 2-D convolution equal to ``flax.linen.Conv``, in parameters and in result.

    Attributes:
        features: F, output channels.
        kernel_size: ``(kh, kw)``, or one size for both.
        strides: Of the window, a pair or one for both.
        padding: ``"SAME"``, ``"VALID"``, zeros on every side, or
            ``((top, bottom), (left, right))``.
        use_bias: Whether a bias is added.

    Raises:
        UserError: A size below 1, an unknown padding, or a window larger than the
            padded image.

    Example:
        >>> conv = PatchConv(features=8, kernel_size=3, strides=2)
        >>> conv.init_with_output(jax.random.key(0), jnp.ones((4, 9, 9, 3)))[0].shape
        (4, 5, 5, 8)
    """

    features: int
    kernel_size: int | Sequence[int] = 3
    strides: int | Sequence[int] = 1
    padding: Padding = "SAME"
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Images ``[b, H, W, C]`` to feature maps ``[b, h, w, F]``."""
        kernel_size, strides = _pair(self.kernel_size), _pair(self.strides)
        check_sizes(
            "PatchConv",
            features=self.features,
            kernel_size=min(kernel_size),
            strides=min(strides),
        )
        padding = _padding(self.padding, x.shape[1:3], kernel_size, strides)
        for size, window, pads in zip(x.shape[1:3], kernel_size, padding, strict=True):
            if window > size + sum(pads):
                raise UserError(
                    f"PatchConv: a window of {window} does not fit an image of {size} "
                    f"padded to {size + sum(pads)}: use a smaller kernel_size, fewer "
                    "layers with pooling, or padding='SAME'."
                )
        kernel = self.param(
            "kernel",
            nn.initializers.lecun_normal(),
            (*kernel_size, x.shape[-1], self.features),
        )
        windows = patches(x, kernel_size, strides, padding)
        y = windows @ kernel.reshape(-1, self.features).astype(x.dtype)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
            y = y + bias.reshape(1, 1, 1, -1).astype(x.dtype)
        return y


class PlaneConv(nn.Module):
    """A "SAME" convolution of stride 1 on planes: channels first, examples last.

    ``[C, H, W, b] -> [F, H, W, b]``, with the parameters of ``flax.linen.Conv``. It is
    about twice as fast as `PatchConv`, since every shift of the window is one long
    copy; inside the built-in `CNN` the layout costs nothing.

    Attributes:
        features: F, output channels.
        kernel_size: Of both sides.
        use_bias: Whether a bias is added.
        pool: Whether `max_pool` follows, before the bias: ``max(y) + c = max(y + c)``
            adds it to a quarter of the numbers.
    """

    features: int
    kernel_size: int
    use_bias: bool = True
    pool: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Planes ``[C, H, W, b]`` to ``[F, H, W, b]``, or half as high and wide."""
        size = self.kernel_size
        channels, height, width, b = x.shape
        shape = (size, size, channels, self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        kernel = kernel.astype(x.dtype)
        before = (size - 1) // 2
        pads = (before, size - 1 - before)
        x = jnp.pad(x, ((0, 0), pads, pads, (0, 0)))
        window = range(size)

        def product(kernel, x):
            matrix = kernel.reshape(-1, self.features).T  # [F, ... * C]
            return matrix @ x.reshape(-1, height * width * b)

        if channels == 1:  # one product; with more channels the copies cost more
            shifts = [
                x[:, i : i + height, j : j + width] for i in window for j in window
            ]
            y = product(kernel, jnp.concatenate(shifts))
        else:
            x = jnp.concatenate([x[:, :, j : j + width] for j in window])
            y = product(kernel[0], x[:, :height])
            for i in window[1:]:
                y = y + product(kernel[i], x[:, i : i + height])
        y = y.reshape(-1, height, width, b)
        if self.pool:
            y = max_pool(y)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
            y = y + bias.reshape(-1, 1, 1, 1).astype(x.dtype)
        return y


class CNN(Classifier, kw_only=True):
    """Convolution, max-pooling and ReLU per stage, then dense layers: a small LeNet.

    Attributes:
        features: Channels of each stage; every stage halves the image.
        kernel_size: Of all convolutions.
        dense: Widths of the hidden layers after them.
        batch_norm: Normalise after each convolution, by the worker's own batch in
            training and by its running statistics (decay 0.9) in evaluation.
        dropout: Rate after every dense hidden layer, in [0, 1).
        classes: Number of logits; None takes the data set's number of classes.

    Note:
        Its pooling has a gradient of its own, so `jax.jvp` does not work; see
        `max_pool`.

    Raises:
        UserError: A size below 1, a rate outside [0, 1), or inputs that are not
            images or are too small for this many stages.

    Example:
        >>> net = CNN(features=[8, 16], batch_norm=True, classes=10)
        >>> images = jnp.ones((4, 28, 28, 1))
        >>> variables = jax.eval_shape(net.init, jax.random.key(0), images)
        >>> sorted(variables)
        ['batch_stats', 'params']
    """

    features: Sequence[int] = (8, 16)
    kernel_size: int = 5
    dense: Sequence[int] = (128,)
    batch_norm: bool = False
    dropout: float = 0.0

    def __post_init__(self):
        self.features, self.dense = tuple(self.features), tuple(self.dense)
        for width in (*self.features, *self.dense, self.kernel_size):
            check_sizes("CNN", size=width)
        check_rate("CNN", self.dropout)
        super().__post_init__()

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Logits ``[b, classes]`` of images ``[b, H, W, C]``."""
        if x.ndim != 4 or min(x.shape[1:3]) < 2 ** len(self.features):
            raise UserError(
                f"CNN: one input has shape {x.shape[1:]}: {len(self.features)} stages "
                "need images [height, width, channels] of at least "
                f"{2 ** len(self.features)} pixels a side: use an MLP, or fewer "
                "features."
            )
        x = x.transpose(3, 1, 2, 0)  # planes: [C, H, W, b]
        for channels in self.features:
            if self.batch_norm:  # which would remove a bias
                x = PlaneConv(channels, self.kernel_size, use_bias=False)(x)
                x = max_pool(nn.BatchNorm(not train, axis=0, momentum=0.9)(x))
            else:
                x = PlaneConv(channels, self.kernel_size, pool=True)(x)
            x = nn.relu(x)  # relu(max) = max(relu), with a quarter of the elements
        x = x.transpose(1, 2, 0, 3).reshape(-1, x.shape[-1]).T
        for width in self.dense:
            x = nn.relu(nn.Dense(width)(x))
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return self.head(x)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    if len(value) != 2:
        raise UserError(f"PatchConv: {value} must be one size or a pair of sizes.")
    return value[0], value[1]


def _padding(
    padding: Padding,
    size: tuple[int, ...],
    kernel_size: tuple[int, int],
    strides: tuple[int, int],
) -> Sequence[tuple[int, int]]:
    if isinstance(padding, int):
        return (padding, padding), (padding, padding)
    if isinstance(padding, str):
        if padding not in ("SAME", "VALID"):
            raise UserError(
                f"PatchConv: padding={padding!r}: choose 'SAME', 'VALID', a number of "
                "zeros, or a pair of pairs."
            )
        return lax.padtype_to_pads(size, kernel_size, strides, padding)
    (top, bottom), (left, right) = padding
    return (top, bottom), (left, right)
