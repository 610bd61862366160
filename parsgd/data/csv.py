"""The user's own table, from a CSV file."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parsgd.data.dataset import Dataset
from parsgd.data.rows import existing_file, from_arrays, split_rows
from parsgd.errors import UserError, first_line
from parsgd.words import counted


def load_csv(
    path: str | Path,
    *,
    label: str | int = -1,
    separator: str = ",",
    test_fraction: float = 0.2,
    split_seed: int = 0,
    standardize: bool = True,
) -> Dataset:
    """A table with a header line: numeric columns and one of labels.

    Args:
        path: The file.
        label: Name of the label column, or its position (-1 is the last): whole numbers
            or strings. All other columns are inputs.
        separator: The character between columns.
        test_fraction: Share of the rows held out.
        split_seed: Of the permutation that chooses them.
        standardize: Shift and scale each column by the training split's statistics.

    Raises:
        UserError: The file, its header line or the column is missing, or a column has
            missing, NaN or non-numeric values.
    """
    file = existing_file(path, "csv")
    # A changed file is another data set: its time is part of the cache's key.
    return _load(
        file,
        file.stat().st_mtime_ns,
        label,
        separator,
        test_fraction,
        split_seed,
        standardize,
    )


@functools.lru_cache(maxsize=4)
def _load(
    file: Path,
    modified: int,
    label: str | int,
    separator: str,
    test_fraction: float,
    split_seed: int,
    standardize: bool,
) -> Dataset:
    del modified
    x, y = _table(file, label, separator)
    train, test = split_rows(
        x, y, test_fraction=test_fraction, seed=split_seed, name=file.stem
    )
    return from_arrays(file.stem, train, test, standardize=standardize)


def _looks_like_data(names: Sequence[str], inputs: Sequence[str]) -> bool:
    """Whether the inputs' names are numbers; but not the columns' own, from 0 or 1.

    Example:
        >>> _looks_like_data(["5.1", "3.5", "a"], ["5.1", "3.5"])
        True
        >>> _looks_like_data(["0", "1", "2"], ["0", "2"])
        False
    """
    # Polars makes the second of two equal ones another name.
    plain = [name.partition("_duplicated_")[0] for name in inputs]
    try:
        numbers = [*map(float, plain)]
    except ValueError:
        return False
    counted_up = [[str(i) for i in range(b, b + len(names))] for b in (0, 1)]
    return bool(numbers) and (len(names) < 3 or [*names] not in counted_up)


def _as_numbers(column: Any) -> Any:
    """Words that are numbers, as polars leaves them where one of them is ``nan``."""
    import polars as pl

    if column.dtype != pl.String or column.has_nulls():
        return column
    numbers = column.cast(pl.Float64, strict=False)
    return column if numbers.has_nulls() else numbers


def _table(
    file: Path, label: str | int, separator: str
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs ``[N, columns] float64`` and labels ``[N]``."""
    import polars as pl

    try:
        # Types from the whole file: a late word must not become a null.
        table = pl.read_csv(file, separator=separator, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise UserError(
            f"csv: {file} cannot be read as a table ({first_line(error)}): it needs a "
            "header line, as many values in each row, UTF-8 text, closed quotes; and "
            "separator must be the one character between the values."
        ) from error
    if table.is_empty():
        raise UserError(
            f"csv: {file} has no rows below its header line: add the examples."
        )
    names = table.columns
    if isinstance(label, int):
        if not -len(names) <= label < len(names):
            columns = counted(len(names), "column")
            raise UserError(
                f"csv: label={label}, but {file} has {columns}: give a name, or a "
                f"position from {-len(names)} to {len(names) - 1}."
            )
        label = names[label]
    inputs = [name for name in names if name != label]
    if _looks_like_data(names, inputs):
        raise UserError(
            f"csv: the first line of {file} looks like data ({', '.join(inputs[:3])}), "
            "and as a header line it would be no example: add one above it that names "
            "the columns, or, if these are names, write them in words."
        )
    if label not in names:
        raise UserError(
            f"csv: {file} has no column {label!r}; it has {', '.join(names)}: "
            "set label to one of these."
        )
    if len(names) < 2:
        raise UserError(
            f"csv: {file} has the one column {label!r} when separated by "
            f"{separator!r}: set separator, or add columns to learn from."
        )
    for name in names:
        column = _as_numbers(table[name])
        bad = column.is_null()
        if column.dtype.is_float():
            bad = bad | ~column.is_finite().fill_null(True)
        if bad.any():
            raise UserError(
                f"csv: column {name!r} of {file} has "
                f"{counted(int(bad.sum()), 'missing, NaN or infinite value')}, the "
                f"first in row {bad.arg_max()} (of the data, from 0): fill them or "
                "remove those rows."
            )
        if name != label and not (
            column.dtype.is_numeric() or column.dtype == pl.Boolean
        ):
            words = column.cast(pl.String)
            word = words.filter(words.cast(pl.Float64, strict=False).is_null())[0]
            raise UserError(
                f"csv: column {name!r} of {file} is not numeric, for example {word!r}: "
                "encode it as numbers or remove it."
            )
    y = table[label].to_numpy()
    if table[label].dtype == pl.String:
        y = y.astype(np.str_)
    return table.drop(label).cast(pl.Float64).to_numpy(), y
