"""A user's own table, from a CSV file."""

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parsgd.data.dataset import Dataset
from parsgd.data.rows import existing_file, from_arrays, split_rows
from parsgd.errors import UserError, first_line
from parsgd.words import counted

# Pandas' list, without words that may be classes too ("none"; "Na", sodium).
MISSING = (
    "",
    "?",
    "nan",
    "NaN",
    "NAN",
    "-nan",
    "-NaN",
    "na",
    "NA",
    "n/a",
    "N/A",
    "#N/A",
    "#NA",
    "<NA>",
    "null",
    "Null",
    "NULL",
)
# Names of columns without one: as in the file, as polars tells several apart, and as
# pandas reads and writes them.
UNNAMED = re.compile(r"(_duplicated_\d+)?|Unnamed: \d+")


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
            or strings. All other columns are inputs. Spaces around names and values do
            not count.
        separator: The character between columns; a backslash and a t are a tab.
        test_fraction: Share of the rows held out, in (0, 1).
        split_seed: Of the permutation that chooses them, 0 or more.
        standardize: Whether to shift and scale each column by the training split's
            statistics.

    Returns:
        A `Dataset` named like the file.

    Raises:
        UserError: The file, its header line or the label column is missing, or a column
            has no name, or missing, NaN or non-numeric values. ``?``, ``nan``, ``NA``,
            ``N/A`` and ``null`` are missing values, in the label column too. Blank
            lines do not count.
    """
    file = existing_file(path, "csv")
    separator = {"\\t": "\t"}.get(separator, separator)
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
    x, y, notes = _table(file, label, separator)
    train, test = split_rows(
        x, y, test_fraction=test_fraction, seed=split_seed, name=file.stem
    )
    data = from_arrays(file.stem, train, test, standardize=standardize)
    return data._replace(notes=(*data.notes, *notes))


def _looks_like_data(names: Sequence[str], inputs: Sequence[str]) -> bool:
    """Whether the inputs' names are numbers, but not those of columns in order.

    Pandas numbers columns that have no names: the inputs alone, or all with the labels.

    Example:
        >>> _looks_like_data(["5.1", "3.5", "a"], ["5.1", "3.5"])
        True
        >>> _looks_like_data(["0", "1", "2"], ["0", "2"])
        False
        >>> _looks_like_data(["0", "1", "2", "label"], ["0", "1", "2"])
        False
    """
    # Polars renames the second of two equal names.
    plain = [name.partition("_duplicated_")[0] for name in inputs]
    try:
        numbers = [*map(float, plain)]
    except ValueError:
        return False
    return bool(numbers) and not (_count_up(names) or _count_up(inputs))


def _count_up(names: Sequence[str]) -> bool:
    """Whether names count from 0 or 1 on; of one or two that may be chance."""
    counts = [[str(i) for i in range(b, b + len(names))] for b in (0, 1)]
    return len(names) > 2 and [*names] in counts


def _plain(column: Any) -> Any:
    """A column of words as numbers, if they are; stripped, with missing ones as null.

    Polars leaves numbers as words where one is missing or has spaces around it.
    """
    import polars as pl

    if column.dtype != pl.String:
        return column
    words = column.str.strip_chars()
    words = words.set(words.is_in(MISSING), None)
    if len(words) and words.is_in(["true", "false"]).all(ignore_nulls=False):
        return words == "true"
    for kind in (pl.Int64, pl.UInt64, pl.Int128, pl.Float64):
        numbers = words.cast(kind, strict=False)
        if numbers.null_count() == words.null_count():
            return numbers
    return words


def _refuse_unnamed(table: Any, file: Path) -> None:
    """Refuse a column without a name, such as the row numbers that pandas writes."""
    for at, name in enumerate(table.columns, 1):
        if not UNNAMED.fullmatch(name):
            continue
        values, rows = table[name].to_list(), range(len(table) + 1)
        what, do = "has no name", "name it in the header line, or remove it"
        if at == 1:
            do += " (pandas writes the index of the rows so, unless index=False)"
        if values in ([*rows[:-1]], [*rows[1:]]):
            what = f"{what} and counts the rows"
            do = "remove it, or write the file without it: in pandas with index=False"
        elif table[name].is_null().all():
            what, do = f"{what} and no values", "remove it"
            if at == len(table.columns):
                do = "remove the separator at the end of each line"
        raise UserError(f"csv: column {at} of {file} {what}: {do}.")


def _counts(column: Any) -> bool:
    """Whether a column numbers the rows; if these are few, it may well be a value."""
    whole = column.dtype.is_integer() and len(column) > 9
    return bool(whole and (column.diff() == 1).all())


def _check_text(file: Path) -> None:
    """Refuse text that would be read as other columns, or as none.

    Raises:
        ValueError: Says what it is.
    """
    with file.open("rb") as opened:
        start = opened.read(1 << 16)
    if wide := start.count(b"\0"):
        two = wide > len(start) // 4
        is_what = "its characters have two bytes, as UTF-16 has"
        raise ValueError(is_what if two else "it has a character NUL, which is no text")
    if b"\r" in start and b"\n" not in start.rstrip():
        raise ValueError("its lines end with carriage returns alone")


def _table(
    file: Path, label: str | int, separator: str
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Inputs ``[N, columns] float64``, labels ``[N]``, and what to tell the user."""
    import polars as pl

    try:
        # Types from the whole file: a word far down must not become a null.
        _check_text(file)
        table = pl.read_csv(file, separator=separator, infer_schema_length=None)
        table = table.rename({name: name.strip() for name in table.columns})
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise UserError(
            f"csv: {file} cannot be read as a table ({first_line(error)}): it needs a "
            "header line, as many values in each row, UTF-8 text, closed quotes; and "
            "separator must be the one character between the values."
        ) from error
    if table.width > 1:  # of one column a blank line may be a missing value
        table = table.filter(~pl.all_horizontal(pl.all().is_null()))
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
    elif f"{label.strip()}_duplicated_0" in names:
        raise UserError(
            f"csv: {file} has several columns {label.strip()!r}: give label a position "
            f"from {-len(names)} to {len(names) - 1}, or the columns other names."
        )
    label = label.strip()
    inputs = [name for name in names if name != label]
    if _looks_like_data(names, inputs):
        raise UserError(
            f"csv: the first line of {file} looks like data ({', '.join(inputs[:3])}), "
            "and as a header line it would be no example: add one above it that names "
            "the columns, or, if these are names, write them in words."
        )
    if len(names) < 2:
        raise UserError(
            f"csv: {file} has the one column {names[0]!r} when separated by "
            f"{separator!r}: set separator, or add columns to learn from."
        )
    _refuse_unnamed(table, file)
    if label not in names:
        raise UserError(
            f"csv: {file} has no column {label!r}; it has {', '.join(names)}: "
            "set label to one of these."
        )
    plain = {name: _plain(table[name]) for name in names}
    for column in plain.values():
        _check(column, file, label)
    column = plain.pop(label)
    y = column.to_numpy()
    if column.dtype == pl.String:
        y = y.astype(np.str_)
    # Where rows are sorted by class, their number gives the class away.
    notes = tuple(
        f"csv: column {name!r} counts the rows and is an input like the others; "
        "remove it where it is only their number"
        for name, column in plain.items()
        if len(plain) > 1 and _counts(column)
    )
    return pl.DataFrame(plain).cast(pl.Float64).to_numpy(), y, notes


def _check(column: Any, file: Path, labels: str) -> None:
    """Refuse missing values, and in a column of inputs those that are no numbers."""
    import polars as pl

    NARROW = (pl.Int64, pl.UInt64, pl.Int32, pl.UInt32)
    what, label = f"csv: column {column.name!r} of {file}", column.name == labels
    if not (label or column.dtype.is_numeric() or column.dtype == pl.Boolean):
        words = column.cast(pl.String).drop_nulls()
        word = words.filter(words.cast(pl.Float64, strict=False).is_null())[0]
        raise UserError(
            f"{what} is not numeric, for example {word!r}: encode it as numbers or "
            f"remove it. The labels are taken from {labels!r}: if they are in another "
            "column, name it (task.label; in a script, label)."
        )
    bad = column.is_null()
    if column.dtype.is_float():
        bad = bad | ~column.is_finite().fill_null(True)
    if bad.any():
        note = "; words such as NA and ? are missing values" if label else ""
        raise UserError(
            f"{what} has {counted(int(bad.sum()), 'missing, NaN or infinite value')}, "
            f"the first in row {bad.arg_max()} (of the data, from 0): fill them or "
            f"remove those rows{note}."
        )
    if label and column.dtype.is_integer() and column.dtype not in NARROW:
        raise UserError(
            f"{what} has labels of more than 64 bits, such as {column.max()}: number "
            "the classes, or write them as words."
        )
