"""569 tumours with 30 measurements each, from scikit-learn: a small convex problem."""

import functools

import numpy as np

from parsgd.data.dataset import Dataset
from parsgd.data.rows import from_arrays, split_rows


@functools.lru_cache(maxsize=4)
def load_breast_cancer(*, test_fraction: float = 0.2, split_seed: int = 0) -> Dataset:
    """Tumours, ``[N, 30] float32`` standardised per column, 2 classes.

    Args:
        test_fraction: Share of the rows held out; the default keeps 455 for training
            and 114 for testing, by a permutation of all rows.
        split_seed: Of that permutation, 0 or more; independent of a run's seed.

    Returns:
        A `Dataset`.

    Raises:
        UserError: The fraction leaves a split empty, or the seed is negative.

    References:
        Wolberg et al, `Breast Cancer Wisconsin (Diagnostic)
        <https://archive.ics.uci.edu/dataset/17>`_, 1995
    """
    # Imported here: scikit-learn takes a second, which other tasks are spared.
    from sklearn.datasets import load_breast_cancer as read

    x, y = (np.asarray(array) for array in read(return_X_y=True))
    name = "breast_cancer"
    train, test = split_rows(
        x, y, test_fraction=test_fraction, seed=split_seed, name=name
    )
    return from_arrays(name, train, test)
