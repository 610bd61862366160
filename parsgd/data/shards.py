"""Fixed shards: which examples each worker keeps for the whole run.

Local steps, compression without feedback and local momentum suffer where workers always
see the same part of the data, and more so where these parts differ in their labels.
"""

import numbers
from typing import Literal

import numpy as np

from parsgd.errors import UserError
from parsgd.words import counted

Shards = Literal["reshuffled", "fixed"]
_STREAM = 1 << 31  # of a seed's random numbers; the first streams are the epochs'


def check_shards(shards: str, label_skew: float, labels: np.ndarray | None) -> None:
    """Refuse a kind of shards that does not exist, or does not fit the data.

    Raises:
        UserError: Says what to set.
    """
    if shards not in ("reshuffled", "fixed"):
        raise UserError(f"shards={shards!r}: choose 'reshuffled' or 'fixed'.")
    if not isinstance(label_skew, numbers.Real) or not 0 <= label_skew <= 1:
        raise UserError(f"label_skew={label_skew!r}: must be a number from 0 to 1.")
    if label_skew and shards != "fixed":
        raise UserError(
            f"label_skew={label_skew}: examples that are dealt out anew in every "
            "epoch have none; set shards=fixed too, or leave it at 0."
        )
    if label_skew and (labels is None or labels.ndim != 1):
        raise UserError(
            f"label_skew={label_skew}: these examples have no single label to sort "
            "them by; leave it at 0."
        )


def fixed_shards(
    examples: int,
    *,
    seed: int = 0,
    label_skew: float = 0.0,
    labels: np.ndarray | None = None,
) -> np.ndarray:
    """All examples, worker by worker.

    A share ``label_skew`` of the examples, drawn at random, is sorted by label before
    it is dealt out, so that each worker gets neighbouring labels, and only a few; the
    rest is dealt at random. With 0 the shards are alike, with 1 they differ most.

    Args:
        examples: N.
        seed: With the skew it determines the shards; 0 or more.
        label_skew: 0 to 1.
        labels: Class of each example, ``[N]``; needed for a skew above 0.

    Returns:
        ``[N] int32``, a permutation; `shard_starts` cuts it for any number of workers.

    Raises:
        UserError: A skew out of range, or examples without one label each.

    Example:
        >>> labels = np.array([0, 1, 2, 0, 1, 2])
        >>> labels[fixed_shards(6, labels=labels, label_skew=1.0)].tolist()
        [0, 0, 1, 1, 2, 2]

    References:
        Hsieh, Phanishayee, Mutlu and Gibbons, "The Non-IID Data Quagmire of
        Decentralized Machine Learning", ICML 2020, section 3 (skewed label partitions),
        https://arxiv.org/abs/1910.00189.
    """
    labels = None if labels is None else np.asarray(labels)
    check_shards("fixed", label_skew, labels)
    if labels is not None and len(labels) != examples:
        raise UserError(f"{len(labels)} labels for {examples} examples: give each one")
    stream = np.random.SeedSequence(seed, spawn_key=(_STREAM,))
    order = np.random.Generator(np.random.Philox(stream)).permutation(
        np.arange(examples, dtype=np.int32)
    )
    size = round(label_skew * examples)
    if size == 0 or labels is None:
        return order
    alike, rest = order[:size], order[size:]
    # Interleaved, so that every worker's shard gets its share of both.
    places = np.zeros(examples, bool)
    places[np.arange(size) * examples // size] = True
    rows = np.empty_like(order)
    rows[places] = alike[np.argsort(labels[alike], kind="stable")]
    rows[~places] = rest
    return rows


def describe_shards(starts: np.ndarray, label_skew: float) -> str:
    """One line for the start of a run.

    Example:
        >>> describe_shards(shard_starts(10, 4), 0.5)
        'each worker keeps 2 or 3 samples for the whole run, 50% of them dealt by label'
    """
    few, many = (int(f(np.diff(starts))) for f in (np.min, np.max))
    sizes = counted(few, "sample") if few == many else f"{few} or {many} samples"
    how = f", {label_skew:.0%} of them dealt by label" * bool(label_skew)
    return f"each worker keeps {sizes} for the whole run{how}"


def shard_starts(examples: int, workers: int) -> np.ndarray:
    """Where each shard starts, and the end: ``[W + 1]``; sizes differ by one at most.

    Example:
        >>> shard_starts(10, 4).tolist()
        [0, 2, 5, 7, 10]
    """
    return np.arange(workers + 1) * examples // workers
