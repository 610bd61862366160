"""A user's own arrays, from a NumPy archive."""

import functools
import zlib
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

import numpy as np

from parsgd.data.dataset import Dataset, check_finite
from parsgd.data.rows import existing_file, from_arrays, split_rows
from parsgd.errors import UserError, first_line


def load_npz(
    path: str | Path,
    *,
    x: str = "x",
    y: str = "y",
    x_test: str | None = None,
    y_test: str | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    standardize: bool = True,
) -> Dataset:
    """Arrays of a NumPy archive: inputs ``[N, ...]`` and labels ``[N]``.

    Args:
        path: The ``.npz`` file.
        x: Key of the inputs.
        y: Key of the labels: whole numbers or strings.
        x_test: Key of the held-out inputs; None splits ``x`` and ``y`` instead.
        y_test: Key of the held-out labels, given exactly when ``x_test`` is.
        test_fraction: Share of the rows held out if there are no test keys, in (0, 1).
        split_seed: Of the permutation that chooses them, 0 or more.
        standardize: Whether to shift and scale by the training split's statistics: per
            column for matrices, by one mean and one deviation for images. ``uint8``
            stays ``uint8`` in memory.

    Returns:
        A `Dataset` named like the file.

    Raises:
        UserError: The file or a key is missing, or the arrays cannot be used.
    """
    file = existing_file(path, "npz")
    if (x_test is None) != (y_test is None):
        raise UserError("npz: give both x_test and y_test, or neither.")
    keys = (x, y) if x_test is None or y_test is None else (x, y, x_test, y_test)
    # A changed file is another data set: its time is part of the cache's key.
    return _load(
        file, file.stat().st_mtime_ns, keys, test_fraction, split_seed, standardize
    )


@functools.lru_cache(maxsize=4)
def _load(
    file: Path,
    modified: int,
    keys: tuple[str, ...],
    test_fraction: float,
    split_seed: int,
    standardize: bool,
) -> Dataset:
    del modified
    # NumPy leaves the file open if it finds no archive in it.
    with file.open("rb") as stream:
        arrays = _arrays(file, stream, keys)
    train = arrays[0], arrays[1]
    if len(arrays) == 4:
        test = arrays[2], arrays[3]
    else:
        train, test = split_rows(
            *train, test_fraction=test_fraction, seed=split_seed, name=file.stem
        )
    return from_arrays(file.stem, train, test, standardize=standardize)


def _arrays(file: Path, stream: BinaryIO, keys: tuple[str, ...]) -> list[np.ndarray]:
    try:
        archive = np.load(stream, allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        # NumPy takes what it does not know for a pickle, and advises to allow that.
        why = "" if "pickle" in str(error) else f" ({first_line(error)})"
        raise UserError(
            f"npz: {file} is no NumPy archive, or only a part of one{why}: write it by "
            "np.savez."
        ) from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise UserError(f"npz: {file} is one array without keys: write it by np.savez.")
    with archive:
        arrays = []
        for key in keys:
            if key not in archive.files:
                there = ", ".join(archive.files) or "none at all"
                raise UserError(
                    f"npz: {file} has no array {key!r}; it has {there}: set task.x and "
                    "task.y (in a script, x and y) to the keys of inputs and labels."
                )
            try:
                arrays.append(archive[key])
                if not isinstance(arrays[-1], np.ndarray):
                    raise BadZipFile("not an array")
            except (BadZipFile, zlib.error, EOFError, OSError) as error:
                raise UserError(
                    f"npz: array {key!r} of {file} is damaged ({first_line(error)}): "
                    "write the file again, by np.savez."
                ) from error
            except ValueError as error:
                raise UserError(
                    f"npz: array {key!r} of {file} holds Python objects: convert it "
                    "to numbers (or labels to strings) before saving."
                ) from error
    for key, array in zip(keys[::2], arrays[::2], strict=True):
        if array.dtype.kind not in "biuf" or array.ndim < 2 or array.size == 0:
            raise UserError(
                f"npz: array {key!r} of {file} is {array.dtype} of shape "
                f"{array.shape}: inputs must be real numbers, one row per example: "
                "[N, features] or [N, h, w, c], none of them 0."
            )
        check_finite(array, f"npz: array {key!r} of {file}")
    for key, array in zip(keys[1::2], arrays[1::2], strict=True):
        if array.ndim == 0:
            raise UserError(
                f"npz: array {key!r} of {file} is one number: labels are one per "
                "example, [N]."
            )
    return arrays
