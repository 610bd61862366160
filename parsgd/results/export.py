"""Write the table: all of it as CSV and Parquet, the readable part as Markdown."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from parsgd.results.table import COLUMNS
from parsgd.results.writing import write_atomic
from parsgd.words import MISSING, decimals, number

_HIDDEN = {
    "accuracy_sem",
    "test_loss_sem",
    "seconds_to_target_sem",
    "samples_to_target_sem",
    "rounds_to_target_sem",
    "bytes_to_target_sem",
    "spread",
    "n",
    "target",
    "worker_batch",
    "train_seconds",
    "rounds_to_target",
    "configuration",
    "folders",
}
_OPTIONAL = {"task", "reason", "test_loss", "placement"}
ERROR = "±: standard error of the mean of n completed runs, one per seed; of a cost to "
ERROR += "the target, of the runs that reached it"
_ERRORS = ("accuracy_sem", "seconds_to_target_sem", "samples_to_target_sem")
_ERRORS += ("bytes_to_target_sem",)


def write_csv(table: pl.DataFrame, path: str | Path) -> None:
    """Write every column as CSV, in full precision; an empty field is a null."""
    write_atomic(path, table.write_csv())


def write_parquet(table: pl.DataFrame, path: str | Path) -> None:
    """Write every column as Parquet, types kept."""
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    write_atomic(path, buffer.getvalue())


def write_markdown(
    table: pl.DataFrame, path: str | Path, notes: Sequence[str] = ()
) -> None:
    """Write the readable columns as a Markdown table.

    Args:
        table: As `table` returns it.
        path: The file.
        notes: What to say below it; what a ± means is said in any case.
    """
    lines = [ERROR, *(notes or filter(None, [no_spread(table)]))]
    write_atomic(path, "\n".join([markdown(table), *(f"- {x}" for x in lines), ""]))


def markdown(table: pl.DataFrame) -> str:
    """The readable columns as a Markdown table, units in the headings."""
    shown = readable(table)
    rows = [[_cell(v) for v in row] for row in [shown.columns, *shown.rows()]]
    rule = ["---"] * len(shown.columns)
    return "".join(f"| {' | '.join(row)} |\n" for row in [rows[0], rule, *rows[1:]])


def readable(table: pl.DataFrame) -> pl.DataFrame:
    """The columns that a person compares, as text, units in the headings.

    Means carry their standard error and n; columns that say nothing (one task, no
    reason) are left out.

    Args:
        table: As `table` returns it.
    """
    return pl.DataFrame(
        [
            pl.Series(heading(name), texts(table, name), pl.String)
            for name in table.columns
            if name not in _HIDDEN
            and not (name in _OPTIONAL and _says_nothing(table, name))
        ]
    )


def texts(table: pl.DataFrame, name: str) -> list[str]:
    """A column as a person reads it, with the errors and n that belong to it."""
    return [_text(row, name) for row in table.iter_rows(named=True)]


def no_spread(table: pl.DataFrame) -> str:
    """What a standard error of 0 means, where the table has one."""
    shown = [*_ERRORS, *(["test_loss_sem"] if needs_loss(table) else [])]
    if not any((table[name] == 0).any() for name in shown):
        return ""
    return "± 0: all runs of the row gave the same value, which is no certainty"


def size(value: float | None) -> str:
    """Bytes for reading, in powers of 1000.

    Example:
        >>> size(0), size(1500), size(2_340_000), size(None)
        ('0 B', '1.5 kB', '2.34 MB', '-')
    """
    if value is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def plus_minus(mean: float | None, sem: float | None, digits: int = 4) -> str:
    """A mean with its standard error, where there is one.

    The error has more digits than the mean where it would read as 0 without; it is 0
    only where all values are the same.

    Example:
        >>> plus_minus(0.97, 0.001), plus_minus(0.97, None), plus_minus(None, None)
        ('0.9700 ± 0.0010', '0.9700', '-')
        >>> plus_minus(0.006, 0.00004), plus_minus(0.97, 0.0)
        ('0.0060 ± 0.00004', '0.9700 ± 0')
    """
    if mean is None:
        return MISSING
    return decimals(mean, digits) + ("" if sem is None else f" ± {_error(sem, digits)}")


def _error(sem: float, digits: int) -> str:
    if sem == 0:
        return "0"
    if sem < 1e-7:  # as digits a row of zeros
        return f"{sem:.1g}"
    return decimals(sem, max(digits, -math.floor(math.log10(sem))))


def seconds(mean: float, sem: float | None) -> str:
    """Seconds with their standard error, as finely as their size asks for.

    Example:
        >>> seconds(0.01234, None), seconds(12.34, 0.5), seconds(1234.5, 20.0)
        ('0.0123', '12.34 ± 0.50', '1234 ± 20')
    """
    return plus_minus(mean, sem, 4 if mean < 1 else 2 if mean < 100 else 0)


def _says_nothing(table: pl.DataFrame, name: str) -> bool:
    if name == "task":
        return table[name].n_unique() < 2
    if name == "test_loss":
        return not needs_loss(table)
    return table[name].is_null().all()


def needs_loss(table: pl.DataFrame) -> bool:
    """Whether a row has a loss to read, but no accuracy."""
    return bool((table["accuracy"].is_null() & table["test_loss"].is_not_null()).any())


def heading(name: str) -> str:
    """What stands above a column of the table, with its unit."""
    if name not in COLUMNS:
        return name
    column = COLUMNS[name]
    # Bytes choose their own prefix in every cell.
    unit = f" ({column.unit})" if column.unit and column.unit != "B" else ""
    return column.title + unit


def _text(row: dict, name: str) -> str:
    value = row[name]
    if value is None:
        return MISSING
    if name == "accuracy":
        return f"{plus_minus(value, row['accuracy_sem'])} (n={row['n']})"
    if name == "test_loss":
        return _with_error(row, name)
    if name in COLUMNS and name.endswith("_to_target"):
        text = _cost(row, name)
        k, _, m = row["reached"].partition(" of ")
        # Of a part of the runs, which is no cost of the configuration.
        return text if k == m else f"{text} ({row['reached']})"
    if name in COLUMNS and COLUMNS[name].unit == "B":
        return size(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        # Settings may lie close together, and all that was measured is rounded.
        return number(value) if name in COLUMNS else f"{value:.12g}"
    return value or MISSING


def _cost(row: dict, name: str) -> str:
    value, sem = row[name], row[f"{name}_sem"]
    if name == "seconds_to_target":
        return seconds(value, sem)
    if name == "bytes_to_target":
        error = "0" if sem == 0 else size(sem)
        return size(value) + ("" if sem is None else f" ± {error}")
    return _with_error(row, name)


def _with_error(row: dict, name: str) -> str:
    sem = row[f"{name}_sem"]
    return number(row[name]) + ("" if sem is None else f" ± {number(sem)}")


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")
