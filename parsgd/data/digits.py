"""1,797 handwritten digits of 8 x 8 pixels that ship with scikit-learn."""

import functools

import numpy as np

from parsgd.data.dataset import Dataset, Split, Standardize, shared
from parsgd.data.rows import split_rows


@functools.lru_cache(maxsize=4)
def load_digits(*, test_fraction: float = 0.2, split_seed: int = 0) -> Dataset:
    """Handwritten digits, ``[N, 8, 8, 1] uint8`` (values 0 to 16), 10 classes.

    Args:
        test_fraction: Share of the images held out; the default keeps 1,438 for
            training and 359 for testing, by a permutation of all images.
        split_seed: Of that permutation, 0 or more; independent of a run's seed.

    Returns:
        A `Dataset`.

    Raises:
        UserError: The fraction leaves a split empty, or the seed is negative.

    References:
        Alpaydin, Kaynak, `Optical Recognition of Handwritten Digits
        <https://archive.ics.uci.edu/dataset/80>`_, 1998
    """
    # Imported here: scikit-learn takes a second, which other tasks are spared.
    from sklearn.datasets import load_digits as read

    x, y = read(return_X_y=True)
    x = np.asarray(x, np.uint8).reshape(-1, 8, 8, 1)
    train, test = split_rows(
        x,
        np.asarray(y, np.int32),
        test_fraction=test_fraction,
        seed=split_seed,
        name="digits",
    )
    return shared(
        Dataset(
            name="digits",
            train=Split(*train),
            test=Split(*test),
            classes=10,
            # Rounded statistics of all pixels.
            prepare=Standardize(mean=4.9, std=6.0),
        )
    )
