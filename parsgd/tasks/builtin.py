"""The built-in tasks: a data set with a model for it, or with one of the user's own."""

from pathlib import Path
from typing import Any, Literal

from parsgd import data as sources
from parsgd.models import GPT, MLP, LogisticRegression
from parsgd.tasks.base import Task, classification


def digits(
    model: Any = None,
    *,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    l2: float = 0.0,
) -> Task:
    """Handwritten digits of 8 x 8 pixels, 1,797 in all, 10 classes.

    Args:
        model: As in `classification`; None for ``MLP(features=[64])``.
        test_fraction: Share of the images held out, in (0, 1).
        split_seed: Of the permutation that chooses them, 0 or more.
        l2: As in `classification`.

    Returns:
        A `Task` with the data of `parsgd.data.load_digits`.

    Raises:
        UserError: An argument is out of range, or ``model`` is not a model.

    Example:
        >>> task = digits()
        >>> task.data.train.x.shape, task.data.classes
        ((1438, 8, 8, 1), 10)
    """
    data = sources.load_digits(test_fraction=test_fraction, split_seed=split_seed)
    return classification(data, _given(model, MLP(features=(64,))), l2=l2)


def fashion_mnist(
    model: Any = None, *, data_dir: str | Path | None = None, l2: float = 0.0
) -> Task:
    """70,000 images of clothes, 28 x 28 pixels, 10 classes.

    Args:
        model: As in `classification`; None for ``MLP(features=[128])``.
        data_dir: The folder of the four files; None to look for them where
            `parsgd.data.load_fashion_mnist` says, and to download them otherwise.
        l2: As in `classification`.

    Returns:
        A `Task` with the data of `parsgd.data.load_fashion_mnist`.

    Raises:
        UserError: The files are nowhere and cannot be downloaded, or are damaged; or
            ``l2`` is negative, or ``model`` is not a model.

    Example:
        >>> task = fashion_mnist()  # doctest: +SKIP
        >>> task.data.train.x.shape  # doctest: +SKIP
        (60000, 28, 28, 1)
    """
    data = sources.load_fashion_mnist(data_dir=data_dir)
    return classification(data, _given(model, MLP(features=(128,))), l2=l2)


def breast_cancer(
    model: Any = None,
    *,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    l2: float = 1e-2,
) -> Task:
    """569 tumours with 30 measurements each, 2 classes: a convex problem by default.

    With the default model and ``l2 > 0`` the mean loss of `Task.metrics` has one
    minimum.

    Args:
        model: As in `classification`; None for ``LogisticRegression()``.
        test_fraction: Share of the rows held out, in (0, 1).
        split_seed: Of the permutation that chooses them, 0 or more.
        l2: As in `classification`.

    Returns:
        A `Task` with the data of `parsgd.data.load_breast_cancer`.

    Raises:
        UserError: An argument is out of range, or ``model`` is not a model.

    Example:
        >>> task = breast_cancer()
        >>> task.data.train.x.shape, task.data.classes
        ((455, 30), 2)
    """
    data = sources.load_breast_cancer(
        test_fraction=test_fraction, split_seed=split_seed
    )
    return classification(data, _given(model, LogisticRegression()), l2=l2)


def synthetic(
    model: Any = None,
    *,
    examples: int = 10_000,
    test_examples: int = 2_000,
    features: int = 32,
    classes: int = 10,
    kind: Literal["clusters", "teacher"] = "clusters",
    separation: float = 4.0,
    label_noise: float = 0.0,
    data_seed: int = 0,
    l2: float = 0.0,
) -> Task:
    """A seeded problem of any size, whose rule `parsgd.data.make_synthetic` states.

    Args:
        model: As in `classification`; None for ``MLP(features=[64])``.
        examples: Size of the training split, 1 or more.
        test_examples: Size of the test split, 1 or more.
        features: Inputs per example, 1 or more.
        classes: Number of labels, 2 or more.
        kind: ``"clusters"``: Gaussian ones. ``"teacher"``: labels of a random network.
        separation: Distance of the clusters' centers in their standard deviations, 0
            or more. Not used by a teacher.
        label_noise: Share of the training labels replaced by random ones, in [0, 1].
        data_seed: Of everything here, 0 or more; a run's seed changes none of it.
        l2: As in `classification`.

    Returns:
        A `Task` with the data of `parsgd.data.make_synthetic`.

    Raises:
        UserError: An argument is out of range, or ``model`` is not a model.

    Example:
        >>> task = synthetic(examples=100, features=5, classes=3)
        >>> task.data.train.x.shape, task.data.classes
        ((100, 5), 3)
    """
    data = sources.make_synthetic(
        examples=examples,
        test_examples=test_examples,
        features=features,
        classes=classes,
        kind=kind,
        separation=separation,
        label_noise=label_noise,
        data_seed=data_seed,
    )
    return classification(data, _given(model, MLP(features=(64,))), l2=l2)


def text(
    model: Any = None,
    *,
    path: str | Path | None = None,
    context: int = 64,
    test_fraction: float = 0.1,
    l2: float = 0.0,
) -> Task:
    """The next byte of a text: tokens ``[b, T]`` to logits ``[b, T, 256]``.

    Args:
        model: As in `classification`; None for ``GPT()``.
        path: A UTF-8 file; None for the English prose of Python's language reference.
        context: T, bytes per window, 1 or more.
        test_fraction: Share of the text held out, its end, in (0, 1).
        l2: As in `classification`.

    Returns:
        A `Task` with the data of `parsgd.data.load_text`.

    Raises:
        UserError: The file is missing, not UTF-8 or too short; another argument is out
            of range; or ``model`` is not a model.

    Example:
        >>> task = text(context=32)
        >>> task.data.train.x.shape[1], task.data.classes
        (32, 256)
    """
    data = sources.load_text(path=path, context=context, test_fraction=test_fraction)
    return classification(data, _given(model, GPT()), l2=l2)


def npz(
    path: str | Path,
    model: Any = None,
    *,
    x: str = "x",
    y: str = "y",
    x_test: str | None = None,
    y_test: str | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    standardize: bool = True,
    l2: float = 0.0,
) -> Task:
    """Arrays of one's own, from a NumPy archive.

    Args:
        path: The ``.npz`` file.
        model: As in `classification`; None for ``MLP(features=[128])``.
        x: Key of the inputs, ``[N, ...]``.
        y: Key of the labels, ``[N]``: whole numbers or strings.
        x_test: Key of the held-out inputs; None splits ``x`` and ``y`` instead.
        y_test: Key of the held-out labels, given exactly when ``x_test`` is.
        test_fraction: Share of the rows held out if there are no test keys, in (0, 1).
        split_seed: Of the permutation that chooses them, 0 or more.
        standardize: Whether to shift and scale by the training split's statistics.
        l2: As in `classification`.

    Returns:
        A `Task` with the data of `parsgd.data.load_npz`.

    Raises:
        UserError: The file or a key is missing, the arrays cannot be used, another
            argument is out of range, or ``model`` is not a model.

    Example:
        >>> import numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/my.npz", x=np.eye(10), y=np.arange(10) % 2)
        ...     task = npz(f"{folder}/my.npz")
        >>> task.data.train.x.shape, task.data.classes
        ((8, 10), 2)
    """
    data = sources.load_npz(
        path,
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        test_fraction=test_fraction,
        split_seed=split_seed,
        standardize=standardize,
    )
    return classification(data, _given(model, MLP(features=(128,))), l2=l2)


def csv(
    path: str | Path,
    model: Any = None,
    *,
    label: str | int = -1,
    separator: str = ",",
    test_fraction: float = 0.2,
    split_seed: int = 0,
    standardize: bool = True,
    l2: float = 0.0,
) -> Task:
    r"""A table of one's own, with a header line: numeric columns and one of labels.

    Args:
        path: The file.
        model: As in `classification`; None for ``MLP(features=[128])``.
        label: Name of the label column, or its position; -1 is the last.
        separator: The character between columns.
        test_fraction: Share of the rows held out, in (0, 1).
        split_seed: Of the permutation that chooses them, 0 or more.
        standardize: Whether to shift and scale each column by the training split's
            statistics.
        l2: As in `classification`.

    Returns:
        A `Task` with the data of `parsgd.data.load_csv`.

    Raises:
        UserError: The file, its header line or the label column is missing, a column
            cannot be used, another argument is out of range, or ``model`` is not a
            model.

    Example:
        >>> import pathlib, tempfile
        >>> rows = ["length,kind", "1.5,a", "2.5,b", "1.0,a", "3.0,b", "2.0,a"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "my.csv")
        ...     _ = file.write_text("\n".join(rows))
        ...     task = csv(file, label="kind")
        >>> task.data.train.x.shape, task.data.classes
        ((4, 1), 2)
    """
    data = sources.load_csv(
        path,
        label=label,
        separator=separator,
        test_fraction=test_fraction,
        split_seed=split_seed,
        standardize=standardize,
    )
    return classification(data, _given(model, MLP(features=(128,))), l2=l2)


def _given(model: Any, default: Any) -> Any:
    return default if model is None else model
