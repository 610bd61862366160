"""Images to train on: Fashion-MNIST from Debian's package, or random ones.

Throughput hardly depends on the pixels, so a machine without the data set can run the
benchmarks too; every result says which images it used.
"""

import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
MEAN, STD = 0.2860, 0.3530  # of the training pixels, scaled to [0, 1]


class Images(NamedTuple):
    """Training images in their storage type."""

    pixels: np.ndarray  # [N, 784] uint8
    labels: np.ndarray  # [N] int32
    source: str


def load() -> Images:
    """The 60,000 training images of Fashion-MNIST, or random ones of its shape."""
    if not DEBIAN.is_dir():
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (60_000, 784), dtype=np.uint8)
        return Images(pixels, rng.integers(0, 10, 60_000, dtype=np.int32), "random")
    pixels = _idx("train-images-idx3-ubyte.gz", header=16).reshape(-1, 784)
    labels = _idx("train-labels-idx1-ubyte.gz", header=8).astype(np.int32)
    return Images(pixels, labels, "Fashion-MNIST")


def _idx(name: str, *, header: int) -> np.ndarray:
    """The bytes of a gzipped IDX file after its header."""
    return np.frombuffer(gzip.decompress((DEBIAN / name).read_bytes()), np.uint8)[
        header:
    ]
