"""From job folders to a table, figures and one page that answers the question.

Which method, on how many workers, reaches the accuracy soonest, and at what cost in
samples, rounds and bytes? `build` writes

- ``table.csv``, ``table.parquet``: every column of `parsgd.results.COLUMNS`;
- ``table.md``: the readable columns;
- ``figures/*.png``: for papers and slides;
- ``index.html``: one file with everything, interactive, that needs no network.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from parsgd.checkpoint.names import free
from parsgd.errors import UserError


class Paths(NamedTuple):
    """What `build` wrote."""

    folder: Path
    csv: Path
    parquet: Path
    markdown: Path
    figures: tuple[Path, ...]
    page: Path


TABLE = "table.parquet"
FILES = ("table.csv", TABLE, "table.md", "figures", "index.html")


def keep_aside(dirs: Sequence[str | Path], out: str | Path | None) -> Path | None:
    """Move an earlier report out of the way: its jobs have no table any more.

    Args:
        dirs: As for `build`.
        out: As for `build`.

    Returns:
        Where it is now; None where there was none.

    Raises:
        UserError: It cannot be moved.
    """
    folder = _folder(dirs, out)
    there = [folder / name for name in FILES if (folder / name).exists()]
    if folder / TABLE not in there:  # what else has these names may be the user's
        return None
    aside = free(folder / "before")
    try:
        aside.mkdir()
        for path in there:
            path.rename(aside / path.name)
    except OSError as error:
        raise UserError(
            f"the report in {folder} is of runs that have no result any more, and "
            f"cannot be moved away ({error.strerror or error}): remove it"
        ) from error
    return aside


def _folder(dirs: Sequence[str | Path], out: str | Path | None) -> Path:
    return Path(out) if out is not None else Path(dirs[0]) / "report"


def build(
    dirs: str | Path | Iterable[str | Path],
    out: str | Path | None = None,
    target: float | None = None,
    sort: str | None = None,
) -> Paths:
    """Read the jobs under ``dirs`` and write table, figures and page.

    Args:
        dirs: Folders of jobs or of sweeps; they are searched to the bottom.
        out: Where to write; by default a folder ``report`` in the first of ``dirs``.
        target: Test accuracy to race to, in (0, 1]; see `parsgd.results.targets`.
        sort: Of the table's rows; see `parsgd.results.table`.

    Raises:
        UserError: No jobs, files of another kind, an impossible target, an unknown
            ``sort``, or a folder that cannot be written.
    """
    # Drawing libraries take a second to import: only those who draw pay.
    from parsgd import results
    from parsgd.report.figures import draw
    from parsgd.report.page import render
    from parsgd.report.study import study

    dirs = [dirs] if isinstance(dirs, str | Path) else list(dirs)
    subject = study(results.load(dirs), target, sort)
    folder = _folder(dirs, out)
    csv, parquet, markdown, drawings, page = (folder / name for name in FILES)
    paths = Paths(folder, csv, parquet, markdown, figures=(), page=page)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        results.write_csv(subject.table, paths.csv)
        results.write_parquet(subject.table, paths.parquet)
        results.write_markdown(subject.table, paths.markdown, subject.notes)
        figures = draw(subject, drawings)
        results.write_atomic(paths.page, render(subject))
    except OSError as error:
        raise UserError(
            f"cannot write {folder} ({error.strerror or error}): choose another "
            "folder with out="
        ) from error
    return paths._replace(figures=tuple(figures))
