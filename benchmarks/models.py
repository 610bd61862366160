"""The benchmarked networks as pure functions: two MLPs and a LeNet-like CNN.

A model maps parameters, uint8 pixels ``[b, 784]`` and a dropout key to logits
``[b, 10]``. The CNN exists with three convolutions: ``lax.conv``, which XLA runs well
on CPU only outside loops, and two forms of patches times a matrix.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from benchmarks.data import MEAN, STD

CLASSES = 10
MLPS = {
    "mlp_258k": ((256, 128, 64), 0.2),
    "mlp_6_9m": ((1024, 1024, 512, 512, 256), 0.3),
}
CNN_RATE = 0.2  # of dropout


class Model(NamedTuple):
    """Parameters at the start, and the logits of a batch."""

    params: dict
    logits: Callable  # (params, pixels [b, 784] uint8, key) -> [b, 10]


def build(name: str, *, dropout: bool = False, convolution: str = "patches") -> Model:
    """A model by name, with dropout at its own rate or without."""
    if name == "cnn":
        rate = CNN_RATE if dropout else 0.0
        stages = STAGES[convolution]
        return Model(_cnn_params(), partial(_cnn, stages=stages, rate=rate))
    widths, rate = MLPS[name]
    return Model(_mlp_params(widths), partial(_mlp, rate=rate if dropout else 0.0))


def cross_entropy(model: Model) -> Callable:
    """The mean loss of a batch: (params, pixels, labels, key) -> scalar."""

    def loss(params, pixels, labels, key):
        logits = model.logits(params, pixels, key)
        hit = jnp.sum(logits * jax.nn.one_hot(labels, CLASSES), axis=-1)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - hit)

    return loss


def count(params) -> int:
    """The number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _standardise(pixels: Array) -> Array:
    return pixels.astype(jnp.float32) * (1 / (255 * STD)) - MEAN / STD


def _mlp_params(widths: tuple[int, ...]) -> dict:
    rng = np.random.default_rng(0)
    sizes = (784, *widths, CLASSES)
    kernels = [jnp.asarray(_he(rng, i, (i, o))) for i, o in pairwise(sizes)]
    return {"kernels": kernels, "biases": [jnp.zeros(width) for width in widths]}


def _mlp(params: dict, pixels: Array, key: Array, *, rate: float) -> Array:
    x = _standardise(pixels)
    *hidden, head = params["kernels"]
    for depth, (kernel, bias) in enumerate(zip(hidden, params["biases"], strict=True)):
        x = jax.nn.relu(x @ kernel + bias)
        x = _dropout(x, jax.random.fold_in(key, depth), rate)
    return x @ head


def _dropout(x: Array, key: Array, rate: float) -> Array:
    if not rate:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0.0)


def _cnn_params() -> dict:
    rng = np.random.default_rng(0)
    shapes = {
        "conv1": (5, 5, 1, 8),
        "conv2": (5, 5, 8, 16),
        "dense": (7 * 7 * 16, 128),
        "head": (128, CLASSES),
    }
    return {
        name: {
            "kernel": jnp.asarray(_he(rng, int(np.prod(shape[:-1])), shape)),
            "bias": jnp.zeros(shape[-1]),
        }
        for name, shape in shapes.items()
    }


def _cnn(
    params: dict, pixels: Array, key: Array, *, stages: Callable, rate: float
) -> Array:
    x = _dense(params["dense"], stages(params, _standardise(pixels)))
    return _dense(params["head"], _dropout(jax.nn.relu(x), key, rate))


def _dense(layer: dict, x: Array) -> Array:
    return x @ layer["kernel"] + layer["bias"]


def _stages_last(
    params: dict, x: Array, *, convolve: Callable, maximum: Callable
) -> Array:
    """Both stages with channels last, ``[b, 784] -> [b, 784]``."""
    x = x.reshape(-1, 28, 28, 1)
    for name in ("conv1", "conv2"):
        x = convolve(x, params[name]["kernel"]) + params[name]["bias"]
        batch, height, width, channels = x.shape
        tiles = x.reshape(batch, height // 2, 2, width // 2, 2, channels)
        # relu(max) = max(relu); reduce_window's gradient is slow on CPU.
        x = jax.nn.relu(maximum(tiles))
    return x.reshape(len(x), -1)


def _stages_first(params: dict, x: Array) -> Array:
    """The same with channels first and examples last: every shift is one long copy."""
    x = x.T.reshape(1, 28, 28, -1)
    for name, window in (("conv1", _all_shifts), ("conv2", _column_shifts)):
        bias = params[name]["bias"][:, None, None, None]
        x = jax.nn.relu(_maxima(window(x, params[name]["kernel"])) + bias)
    return x.transpose(1, 2, 0, 3).reshape(-1, x.shape[-1]).T


@jax.custom_vjp
def _maxima(x: Array) -> Array:
    """Of 2 x 2 tiles of planes; of equal ones the first takes the gradient."""
    return _plane_tiles(x).max((2, 4))


def _plane_tiles(x: Array) -> Array:
    channels, height, width, batch = x.shape
    return x.reshape(channels, height // 2, 2, width // 2, 2, batch)


def _maxima_backward(kept: tuple, left: Array) -> tuple[Array]:
    tiles, parts = _plane_tiles(kept[0]), []
    for i, j in ((0, 0), (0, 1), (1, 0)):
        parts.append(jnp.where(tiles[:, :, i, :, j] == kept[1], left, 0.0))
        left = left - parts[-1]
    rows = jnp.stack(parts[:2], 3), jnp.stack([parts[2], left], 3)
    return (jnp.stack(rows, 2).reshape(kept[0].shape),)


_maxima.defvjp(lambda x: (_maxima(x), (x, _maxima(x))), _maxima_backward)


def _reduced(tiles: Array) -> Array:
    return tiles.max((2, 4))


def _pairwise(tiles: Array) -> Array:
    """``_reduced`` by elementwise maxima: faster outside loops, slower inside."""
    rows = jnp.maximum(tiles[:, :, 0], tiles[:, :, 1])
    return jnp.maximum(rows[:, :, :, 0], rows[:, :, :, 1])


def _conv(x: Array, kernel: Array) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)


def _patches(x: Array, kernel: Array) -> Array:
    """``_conv`` as one product: windows along the rows, then along the columns."""
    _, height, width, _ = x.shape
    x = jnp.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
    x = jnp.concatenate([x[:, :, j : j + width] for j in range(5)], axis=-1)
    x = jnp.concatenate([x[:, i : i + height] for i in range(5)], axis=-1)
    return x @ kernel.reshape(-1, kernel.shape[-1])


def _all_shifts(x: Array, kernel: Array) -> Array:
    """``_conv`` of ``[C, H, W, b]`` as one product with the 25 shifted images."""
    _, height, width, batch = x.shape
    x = jnp.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
    shifted = [x[:, i : i + height, j : j + width] for i in range(5) for j in range(5)]
    out = _matrix(kernel) @ jnp.concatenate(shifted).reshape(-1, height * width * batch)
    return out.reshape(-1, height, width, batch)


def _column_shifts(x: Array, kernel: Array) -> Array:
    """``_conv`` of ``[C, H, W, b]`` as a sum of 5 products: a fifth of the copies."""
    _, height, width, batch = x.shape
    x = jnp.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
    x = jnp.concatenate([x[:, :, j : j + width] for j in range(5)])
    rows = [x[:, i : i + height].reshape(len(x), -1) for i in range(5)]
    out = sum(_matrix(row) @ shifted for row, shifted in zip(kernel, rows, strict=True))
    return out.reshape(-1, height, width, batch)


def _matrix(kernel: Array) -> Array:
    """A kernel ``[..., C, F]`` as ``[F, ... * C]``."""
    return kernel.reshape(-1, kernel.shape[-1]).T


def _he(rng: np.random.Generator, fan_in: int, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32)


STAGES = {
    "conv": partial(_stages_last, convolve=_conv, maximum=_pairwise),
    "patches": partial(_stages_last, convolve=_patches, maximum=_reduced),
    "planes": _stages_first,
}
