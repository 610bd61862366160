"""Seeded problems of any size: Gaussian clusters, or labels of a random teacher."""

import functools
from typing import Literal

import numpy as np

from parsgd.data.dataset import Dataset, Split, as_floats, shared
from parsgd.errors import UserError, check_whole


@functools.lru_cache(maxsize=4)
def make_synthetic(
    *,
    examples: int = 10_000,
    test_examples: int = 2_000,
    features: int = 32,
    classes: int = 10,
    kind: Literal["clusters", "teacher"] = "clusters",
    separation: float = 4.0,
    label_noise: float = 0.0,
    data_seed: int = 0,
) -> Dataset:
    """Inputs ``[N, features] float32`` whose labels follow a known rule.

    - ``"clusters"``: ``x = center[y] + z`` with unit Gaussian ``z`` and balanced
      random ``y``; any two centers lie about ``separation`` apart.
    - ``"teacher"``: unit Gaussian ``x``; ``y`` is the largest output of a random
      network with one hidden layer of 64 tanh units.

    Args:
        examples: Size of the training split.
        test_examples: Size of the test split, from the same rule.
        features: Inputs per example.
        classes: Number of labels, at least 2.
        kind: ``"clusters"`` or ``"teacher"``.
        separation: Distance of the cluster centers in standard deviations of a
            cluster; 0 makes them one. Not used by a teacher.
        label_noise: Share of the training labels replaced by random ones, in [0, 1].
        data_seed: Of everything here, 0 or more; independent of a run's seed.

    Returns:
        A `Dataset`.

    Raises:
        UserError: A size too small, an unknown kind, or a value out of its range.

    Example:
        >>> data = make_synthetic(examples=100, features=5, classes=3)
        >>> data.train.x.shape, data.classes
        ((100, 5), 3)
    """
    sizes = {"examples": examples, "test_examples": test_examples, "features": features}
    for key, size in sizes.items():
        if size < 1:
            raise UserError(f"synthetic: {key}={size}: it must be at least 1.")
    if classes < 2:
        raise UserError(f"synthetic: classes={classes}: it must be at least 2.")
    if kind not in ("clusters", "teacher"):
        raise UserError(f"synthetic: kind={kind!r}: choose 'clusters' or 'teacher'.")
    check_whole("data_seed", data_seed, 0)
    if separation < 0 or not 0 <= label_noise <= 1:
        raise UserError(
            f"synthetic: separation={separation} must be 0 or more, and "
            f"label_noise={label_noise} between 0 and 1."
        )
    # Separate streams: a larger training split leaves the rule and test split alone.
    rule, train, test, noise = np.random.default_rng(data_seed).spawn(4)
    draw = _clusters if kind == "clusters" else _teacher
    label = draw(rule, features=features, classes=classes, separation=separation)
    train, test = Split(*label(train, examples)), Split(*label(test, test_examples))
    wrong = noise.random(examples) < label_noise
    random = noise.integers(classes, size=examples, dtype=np.int32)
    train = train._replace(y=np.where(wrong, random, train.y))
    return shared(Dataset("synthetic", train, test, classes, as_floats))


def _clusters(rule, *, features, classes, separation):
    # Two centers of variance s^2 per axis are sqrt(2 * features) * s apart.
    scale = separation / np.sqrt(2 * features)
    centers = scale * rule.standard_normal((classes, features), np.float32)

    def label(rng, n):
        y = rng.integers(classes, size=n, dtype=np.int32)
        z = rng.standard_normal((n, features), np.float32)
        return (centers[y] + z).astype(np.float32), y

    return label


def _teacher(rule, *, features, classes, separation, hidden=64):
    del separation
    inner = rule.standard_normal((features, hidden), np.float32) / np.sqrt(features)
    outer = rule.standard_normal((hidden, classes), np.float32)

    def label(rng, n):
        x = rng.standard_normal((n, features), np.float32)
        return x, np.argmax(np.tanh(2 * x @ inner) @ outer, axis=1).astype(np.int32)

    return label
