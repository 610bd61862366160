"""What a data set is: two splits, a class count, and how a batch reaches the model."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from parsgd.errors import UserError
from parsgd.words import counted


class Split(NamedTuple):
    """Examples in their storage type, so that a data set stays small on the device.

    Attributes:
        x: Inputs, ``[N, ...]``; images stay ``uint8``.
        y: Class labels ``[N]`` (``int32``), or the next tokens ``[N, T]``.
    """

    x: np.ndarray
    y: np.ndarray


class Dataset(NamedTuple):
    """Training and test examples with everything a model needs to read them.

    Attributes:
        name: Its name in tables and logs.
        train: Examples to learn from, a `Split`.
        test: Held-out examples, a `Split`.
        classes: Number of classes (for text the size of the vocabulary).
        prepare: Traced on the device once per batch, storage -> model input, for
            example ``uint8`` pixels to standardised ``float32``.
        notes: Lines that are shown when a run starts.
    """

    name: str
    train: Split
    test: Split
    classes: int
    prepare: Callable[[jax.Array], jax.Array]
    notes: tuple[str, ...] = ()


class Standardize(NamedTuple):
    """``(x - mean) / std`` in float32; equal settings compare and hash equal.

    Attributes:
        mean: One number, or one of each entry of the last axis.
        std: Likewise.

    Example:
        >>> Standardize(mean=127.5, std=127.5)(np.array([0, 255], np.uint8)).tolist()
        [-1.0, 1.0]
    """

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Standardised ``float32`` of the same shape."""
        x = jnp.asarray(x).astype(jnp.float32)
        if not (isinstance(self.mean, tuple) or isinstance(self.std, tuple)):
            return (x - self.mean) * (1.0 / self.std)
        ones = (1,) * (x.ndim - 1)
        mean, std = (np.reshape(value, (*ones, -1)) for value in self)
        return (x - mean.astype(np.float32)) * (1.0 / std).astype(np.float32)


def as_floats(x: jax.Array) -> jax.Array:
    """Inputs that were prepared on the host already, as ``float32``."""
    return jnp.asarray(x).astype(jnp.float32)


def as_tokens(x: jax.Array) -> jax.Array:
    """Token ids, stored as bytes, as ``int32``."""
    return jnp.asarray(x).astype(jnp.int32)


def validate(data: Dataset) -> Dataset:
    """Refuse a data set that cannot be trained on.

    Args:
        data: The data set to check.

    Returns:
        ``data`` itself.

    Raises:
        UserError: A split is empty, its ``x`` and ``y`` differ in length, the splits
            differ in shape, a value is not finite, or a label is outside
            ``0 .. classes - 1``.

    Example:
        >>> x, y = np.zeros((3, 2), np.float32), np.array([0, 1, 2], np.int32)
        >>> toy = Dataset("toy", Split(x, y), Split(x, y), 2, as_floats)
        >>> validate(toy)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        parsgd.errors.UserError: toy: training labels run from 0 to 2, but with 2 ...
    """
    if data.classes < 2:
        raise UserError(
            f"{data.name}: {data.classes} class is nothing to tell apart: "
            "a classification task needs at least 2."
        )
    _check_split(data, data.train, "training")
    _check_split(data, data.test, "test")
    for field, ours, theirs in zip(Split._fields, data.train, data.test, strict=True):
        if ours.shape[1:] != theirs.shape[1:] or ours.dtype != theirs.dtype:
            raise UserError(
                f"{data.name}: one training {field} is {ours.dtype}{ours.shape[1:]}, "
                f"one test {field} is {theirs.dtype}{theirs.shape[1:]}: "
                "both splits must hold the same kind of example."
            )
    return data


def shared(data: Dataset) -> Dataset:
    """Validate ``data`` and make its arrays read-only.

    For loaders, which return the same arrays to every caller in this process.
    """
    for array in (*data.train, *data.test):
        array.setflags(write=False)
    return validate(data)


def check_finite(x: np.ndarray, where: str) -> None:
    """Raise `UserError` if an example of ``x [N, ...]`` has NaN or infinity in it."""
    if not np.issubdtype(x.dtype, np.floating):
        return
    bad = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
    if bad.any():
        raise UserError(
            f"{where} has {counted(int(bad.sum()), 'example')} with NaN or an infinite "
            f"value, the first is number {int(bad.argmax())} (from 0): remove or fill "
            "them."
        )


def _check_split(data: Dataset, split: Split, which: str) -> None:
    x, y = split
    if len(x) == 0:
        raise UserError(f"{data.name}: the {which} split is empty: give it examples.")
    if len(x) != len(y):
        raise UserError(
            f"{data.name}: the {which} split has {counted(len(x), 'input')} but "
            f"{counted(len(y), 'label')}: each example needs exactly one of each."
        )
    check_finite(x, f"{data.name}: the {which} split")
    if not np.issubdtype(y.dtype, np.integer):
        raise UserError(
            f"{data.name}: {which} labels are {y.dtype}: they must be integers."
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= data.classes:
        count = "number the classes from 0" if low < 0 else f"set classes to {high + 1}"
        raise UserError(
            f"{data.name}: {which} labels run from {low} to {high}, but with "
            f"{data.classes} classes they must lie in 0 .. {data.classes - 1}: "
            f"{count} or correct the labels."
        )
