"""Fashion-MNIST: 60,000 + 10,000 images of clothes, found on disk or downloaded."""

import functools
import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np

from parsgd.data.dataset import Dataset, Split, Standardize, shared
from parsgd.errors import UserError

URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
SHA256 = {
    "train-images-idx3-ubyte.gz": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
    ),
    "train-labels-idx1-ubyte.gz": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
    ),
}
SYSTEM = Path("/usr/share/datasets/fashion-mnist")


def load_fashion_mnist(*, data_dir: str | Path | None = None) -> Dataset:
    """Images of clothes, ``[N, 28, 28, 1] uint8``, 10 classes, with their own split.

    The four files (``train-images-idx3-ubyte.gz`` and so on) are read from
    ``data_dir``, or else from the folder that the environment variable ``PARSGD_DATA``
    names. Without either they are looked for in the user's cache folder, and where
    Debian's package dataset-fashion-mnist installs them; if they are in neither, they
    are downloaded into the cache and their checksums verified. A folder may hold them
    directly or in ``fashion-mnist/``, compressed or not.

    Args:
        data_dir: The only folder to look in; None for the places above.

    Returns:
        A `Dataset` with 60,000 images for training and 10,000 for testing.

    Raises:
        UserError: The files are nowhere and cannot be downloaded, or are damaged.

    References:
        Xiao et al, `Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
        Learning Algorithms <https://arxiv.org/abs/1708.07747>`_, 2017
    """
    return _read(_folder(None if data_dir is None else Path(data_dir)))


def _folder(data_dir: Path | None) -> Path:
    cache = _cache()
    if data_dir is not None:
        return _named("data_dir", data_dir)
    if named := os.environ.get("PARSGD_DATA"):
        return _named("PARSGD_DATA", Path(named))
    found = _in(cache) or _in(SYSTEM)
    return found or _download(cache / "fashion-mnist")


def _named(by: str, place: Path) -> Path:
    """The one folder that was asked for: those elsewhere may be other images."""
    if found := _in(place.expanduser()):
        return found
    unset = "" if by == "data_dir" else ", or unset it to have them found elsewhere"
    raise UserError(
        f"fashion_mnist: {by}={place} does not hold the four files "
        f"{', '.join(SHA256)}: name another folder{unset}. {_three_ways()}"
    )


def _in(place: Path) -> Path | None:
    for folder in (place, place / "fashion-mnist"):
        if all(_file(folder, name) for name in SHA256):
            return folder
    return None


def _download(folder: Path) -> Path:
    import pooch

    files = pooch.create(path=folder, base_url=URL, registry=SHA256, retry_if_failed=3)
    try:
        for name in SHA256:
            files.fetch(name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"fashion_mnist: the images are neither in {folder} nor in {SYSTEM}, and "
            f"the download from {URL} failed: "
            f"{type(error).__name__}: {error}. {_three_ways()}"
        ) from error
    return folder


def _three_ways() -> str:
    return (
        "Three ways to get them: (1) install Debian's package: apt install "
        "dataset-fashion-mnist; (2) put the four files into a folder and set "
        f"data_dir or PARSGD_DATA to it, or into {_cache() / 'fashion-mnist'}; "
        "(3) connect to the network, and they are downloaded."
    )


def _cache() -> Path:
    import pooch

    return Path(pooch.os_cache("parsgd"))


def _file(folder: Path, name: str) -> Path | None:
    """The file as it was published, or unpacked."""
    for path in (folder / name, folder / name.removesuffix(".gz")):
        if path.is_file():
            return path
    return None


@functools.lru_cache(maxsize=2)
def _read(folder: Path) -> Dataset:
    splits = {}
    for prefix in ("train", "t10k"):
        images = _idx(folder, f"{prefix}-images-idx3-ubyte.gz")
        labels = _idx(folder, f"{prefix}-labels-idx1-ubyte.gz")
        splits[prefix] = Split(images[..., None], labels.astype(np.int32))
    return shared(
        Dataset(
            name="fashion_mnist",
            train=splits["train"],
            test=splits["t10k"],
            classes=10,
            # Of all training pixels: 0.2860 and 0.3530 of 255.
            prepare=Standardize(mean=72.94, std=90.02),
        )
    )


def _idx(folder: Path, name: str) -> np.ndarray:
    """An IDX file: two zero bytes, type 8 (uint8), the rank, big-endian sizes, data."""
    path = _file(folder, name)
    assert path is not None
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"fashion_mnist: {path} cannot be read ({error}): remove it and get it "
            f"again. {_three_ways()}"
        ) from error
    rank = 3 if "idx3" in name else 1
    header = 4 + 4 * rank
    whole = len(raw) >= header and raw[:4] == bytes([0, 0, 8, rank])
    shape = np.frombuffer(raw[4:header], ">u4").tolist() if whole else []
    if not whole or len(raw) != header + math.prod(shape):
        raise UserError(
            f"fashion_mnist: {path} is not a complete IDX file of rank {rank}: remove "
            f"it and get it again. {_three_ways()}"
        )
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)
