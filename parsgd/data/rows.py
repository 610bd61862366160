"""Helpers shared by the sources of tabular data: splitting, labels, scaling."""

import os
from pathlib import Path

import numpy as np

from parsgd.data.dataset import Dataset, Split, Standardize, as_floats, shared
from parsgd.errors import UserError, check_positive, check_whole
from parsgd.words import counted

OTHER_LABELS = (
    "Labels that name classes are chosen with task.label, in csv the last column if "
    "left out (of npz task.y; in a script, label or y)."
)


def from_arrays(
    name: str,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    *,
    standardize: bool = True,
) -> Dataset:
    """A validated data set from a user's arrays.

    Labels of any whole numbers or strings become ``0 .. classes - 1`` in sorted
    order. ``uint8`` inputs stay ``uint8`` and are standardised on the device; others
    become ``float32`` and are standardised here. Matrices are standardised per column,
    higher ranks (images) by one mean and standard deviation. All statistics come from
    the training split alone.

    Args:
        name: For messages, tables and logs.
        train: Finite inputs ``[N, ...]`` and labels ``[N]``.
        test: The same for the held-out examples.
        standardize: False leaves the values as they are (as ``float32``).

    Returns:
        A `Dataset` with read-only arrays.

    Raises:
        UserError: As `parsgd.data.validate`, or if the labels cannot be class ids, or
            inputs are too large or too small to be standardised.
    """
    values, (y_train, y_test) = _class_ids(name, train[1], test[1])
    x_train, x_test = train[0], test[0]
    if x_train.shape[1:] != x_test.shape[1:]:
        raise UserError(
            f"{name}: a training example is of shape {x_train.shape[1:]}, a test "
            f"example of {x_test.shape[1:]}: give both the same columns or pixels."
        )
    prepare, small = as_floats, x_train.dtype == x_test.dtype == np.uint8
    if standardize and len(x_train):
        mean, std = _statistics(name, x_train)
        if small:
            prepare = Standardize(*map(_plain, (mean, std)))
        else:
            x_train, x_test = (x_train - mean) / std, (x_test - mean) / std
    if not small:
        x_train, x_test = x_train.astype(np.float32), x_test.astype(np.float32)
    return shared(
        Dataset(
            name=name,
            train=Split(x_train, y_train),
            test=Split(x_test, y_test),
            classes=len(values),
            prepare=prepare,
            notes=_single(name, np.bincount(np.concatenate([y_train, y_test])))
            or _unseen(name, values, y_train, y_test),
        )
    )


def _unseen(
    name: str, values: np.ndarray, y_train: np.ndarray, y_test: np.ndarray
) -> tuple[str, ...]:
    """A line where test labels are in no training example."""
    new = np.setdiff1d(y_test, y_train)
    if not len(new):
        return ()
    listed = ", ".join(str(values[i]) for i in new[:3])
    return (
        f"{name}: no training example has the label{'s'[: len(new) - 1]} {listed}"
        f"{' and others' if len(new) > 3 else ''}, which "
        f"{counted(int(np.isin(y_test, new).sum()), 'test example')} of "
        f"{len(y_test):,} have: none of these can be got right",
    )


def _single(name: str, counts: np.ndarray) -> tuple[str, ...]:
    """What to say of classes of so many examples each."""
    single, classes = int((counts == 1).sum()), len(counts)
    if 2 * single <= classes:
        return ()
    return (
        f"{name}: {single:,} of its {classes:,} classes have a single example. This "
        f"task sorts examples into classes, and a quantity is none. {OTHER_LABELS}",
    )


def _statistics(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation: of each column of a matrix, else of all."""
    # In float64: float32 would lose the low digits of dates and the like.
    axis = 0 if x.ndim == 2 else None
    with np.errstate(over="ignore", invalid="ignore"):
        mean = x.mean(axis=axis, dtype=np.float64)
        std = x.std(axis=axis, dtype=np.float64)
    # A constant column carries nothing: it becomes 0, not 0 / 0, and not the rounding
    # error of its mean.
    least, most = x.min(axis=axis), x.max(axis=axis)
    mean = np.where(least == most, least, mean)
    std = np.where(least == most, 1.0, std)
    _check_spread(name, std, np.maximum(np.abs(least), np.abs(most)))
    return mean, std


def _plain(statistic: np.ndarray) -> float | tuple[float, ...]:
    """As `Standardize` takes it: numbers, by which it can be compared."""
    return float(statistic) if statistic.ndim == 0 else tuple(statistic.tolist())


def _check_spread(name: str, std: np.ndarray, largest: np.ndarray) -> None:
    """Refuse values whose squares exceed float64: scaled, all would be 0 or NaN."""
    bad = ~(np.isfinite(std) & (std > 0))
    if bad.any():
        first = int(bad.argmax())
        where = f"column {first} (of the inputs, from 0)" if bad.ndim else "the inputs"
        raise UserError(
            f"{name}: {where} cannot be standardised, with values up to "
            f"{np.ravel(largest)[first]:g}: correct them if they stand for something "
            "missing, or give them in another unit."
        )


def existing_file(path: str | Path, source: str) -> Path:
    """The absolute path of a file that exists; ``source`` names the task in errors."""
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        folder = " (it is a folder)" if file.is_dir() else ""
        raise UserError(
            f"{source}: there is no file {file}{folder}: set task.path (in a script, "
            "path) to an existing one."
        )
    if not os.access(file, os.R_OK):
        raise UserError(
            f"{source}: {file} may not be read by this user: change its permissions."
        )
    return file


def split_rows(
    x: np.ndarray, y: np.ndarray, *, test_fraction: float, seed: int, name: str
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test rows by one seeded permutation, in that order.

    Args:
        x: Inputs ``[N, ...]``.
        y: Labels ``[N]``.
        test_fraction: Share of the rows held out, in (0, 1), rounded to whole rows.
        seed: Of the permutation; the same seed gives the same split on every run.
        name: For the message.

    Raises:
        UserError: The lengths differ, or the fraction leaves one of the splits empty.
    """
    if len(x) != len(y):
        raise UserError(
            f"{name}: {counted(len(x), 'input')} but {counted(len(y), 'label')}: each "
            "example needs exactly one of each."
        )
    check_whole("split_seed", seed, 0)
    check_positive("test_fraction", test_fraction)
    if y.ndim != 1:
        raise UserError(
            f"{name}: labels of shape {y.shape}: give one class per example, as an "
            "array of shape [N]."
        )
    if len(x) < 2:
        raise UserError(
            f"{name}: {counted(len(x), 'example')} cannot be split into training and "
            "test examples: add some."
        )
    within = 0 < test_fraction < 1
    if not within or not 0 < round(len(x) * test_fraction) < len(x):
        enough = 0.2 if round(len(x) * 0.2) else 0.5
        raise UserError(
            f"{name}: test_fraction={test_fraction} of {counted(len(x), 'example')} "
            "leaves one of the two splits empty: choose a value between 0 and 1, for "
            f"example {enough}."
        )
    held_out = round(len(x) * test_fraction)
    order = np.random.default_rng(seed).permutation(len(x))
    train, test = order[held_out:], order[:held_out]
    return (x[train], y[train]), (x[test], y[test])


def _class_ids(
    name: str, *labels: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """The sorted distinct labels, and each array as positions among them."""
    for y in labels:
        if y.ndim != 1:
            raise UserError(
                f"{name}: labels of shape {y.shape}: give one class per example, as an "
                "array of shape [N]."
            )
        if y.dtype.kind == "f":
            if not np.isfinite(y).all():
                raise UserError(
                    f"{name}: some labels are NaN or infinite: remove those examples."
                )
            if (y != np.round(y)).any():
                raise UserError(
                    f"{name}: labels such as {y[y != np.round(y)][0]} are not whole "
                    "numbers: this task sorts examples into classes, and predicts no "
                    f"quantities. {OTHER_LABELS}"
                )
        elif y.dtype.kind not in "iubU":
            raise UserError(
                f"{name}: labels are {y.dtype}: use whole numbers or strings."
            )
    if len({y.dtype.kind == "U" for y in labels}) > 1:
        raise UserError(
            f"{name}: training labels are {labels[0].dtype}, test labels "
            f"{labels[1].dtype}, so no class is in both: give both as numbers or both "
            "as words."
        )
    if np.result_type(*labels).kind == "f" and all(
        y.dtype.kind in "iub" for y in labels
    ):
        labels = tuple(y.astype(object) for y in labels)  # not rounded to float64
    values, ids = np.unique(np.concatenate(labels), return_inverse=True)
    ids = ids.astype(np.int32)
    ends = np.cumsum([len(y) for y in labels])[:-1]
    return values, tuple(np.split(ids, ends))
