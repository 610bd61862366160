"""The end of a sweep on a terminal: the columns that matter and fit, and the target."""

from collections.abc import Collection, Sequence

import polars as pl
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parsgd import results
from parsgd.report.remarks import table_notes
from parsgd.results import COLUMNS, Job
from parsgd.results.export import needs_loss, plus_minus, texts
from parsgd.results.ranking import SORTS, sorts_of
from parsgd.results.said import SAID
from parsgd.results.table import table_of_groups
from parsgd.words import MISSING

HEADINGS = {
    "accuracy": "Accuracy\n± se (n)",
    "test_loss": "Test loss",
    "seconds_to_target": "Seconds\nto target",
    "samples_to_target": "Samples\nto target",
    "rounds_to_target": "Rounds\nto target",
    "bytes_to_target": "Bytes\nto target",
    "reached": "Reached\ntarget",
    "samples_per_second": "Samples/s",
}
# Given up one after the other on a narrow terminal.
SPARE = ("samples_per_second", "samples_to_target", "reached", "bytes_to_target")
# Characters where there is no terminal; more if the table needs them, but not for the
# placement.
PIPED = 120


def show(
    jobs: Sequence[Job],
    target: float | None = None,
    console: Console | None = None,
    sort: str | None = None,
) -> None:
    """Print the table of these jobs, how it is sorted and what their target is.

    Args:
        jobs: As `parsgd.results.load` returns them.
        target: As for `parsgd.results.targets`.
        console: Where to. Without a terminal nothing is left out.
        sort: As for `parsgd.results.table`.
    """
    groups, console = results.group(jobs), console or Console()
    goals, sorts = results.targets(groups, target), sorts_of(groups, sort)
    table = table_of_groups(groups, goals, sorts)
    console.print(_fitted(table, {SORTS[by] for by in sorts.values()}, console))
    for line in table_notes(table, groups, goals, sorts, sort):
        print(line, file=console.file)


def _fitted(table: pl.DataFrame, dear: Collection[str], console: Console) -> Table:
    """The table with as many columns as fit, those that rows are sorted by in any case.

    Without a terminal it is the console that is made as wide as the table.
    """
    names = [*naming(table), *_measured(table, dear)]
    drawn = _drawn(table, names)
    if not console.is_terminal:
        console.width = max(PIPED, _width(console, drawn))
    for spare in SPARE:
        if _width(console, drawn) <= console.width:
            break
        if spare in names and spare not in dear:
            names.remove(spare)
            drawn = _drawn(table, names)
    if table["placement"].is_null().all():
        return drawn
    wider = _drawn(table, [*names, "placement"])
    return wider if _width(console, wider) <= min(PIPED, console.width) else drawn


def naming(table: pl.DataFrame) -> list[str]:
    """The columns that tell the configurations apart, and the workers in any case."""
    names = ["strategy"]
    varied = [name for name in table.columns if name not in COLUMNS]
    sizes = ("workers", "local_steps", "global_batch", "learning_rate")
    for name in ("task", *varied, *sizes):
        longer = [*names, name]
        differ = table.select(longer).n_unique() > table.select(names).n_unique()
        if name == "workers" or name in SAID or differ:
            names = longer
    return names


def _measured(table: pl.DataFrame, dear: Collection[str]) -> list[str]:
    known = [name for name in HEADINGS if table[name].is_not_null().any()]
    needless = {"rounds_to_target"} - {*dear}  # rounds for those who ask
    if not needs_loss(table):
        needless.add("test_loss")
    return [name for name in known if name not in needless]


def _drawn(table: pl.DataFrame, names: Sequence[str]) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    columns = []
    for name in names:
        title = COLUMNS[name].title if name in COLUMNS else name
        number = name in HEADINGS or table[name].dtype.is_numeric()
        drawn.add_column(
            Text(HEADINGS.get(name, title)),
            justify="right" if number else "left",
            overflow="fold",  # where even the fewest columns do not fit: never cut
        )
        cells = _accuracies(table) if name == "accuracy" else texts(table, name)
        columns.append(map(Text, cells))
    for row in zip(*columns, strict=True):
        drawn.add_row(*row)
    return drawn


def _accuracies(table: pl.DataFrame) -> list[str]:
    columns = table.select("accuracy", "accuracy_sem", "n").iter_rows()
    return [
        MISSING if mean is None else f"{plus_minus(mean, sem)} ({n})"
        for mean, sem, n in columns
    ]


def _width(console: Console, drawn: Table) -> int:
    """What the table would take if there were room."""
    room = console.options.update(max_width=10_000)
    return console.measure(drawn, options=room).maximum
