"""The table of jobs on the console, and where page and figures are."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parsgd.words import counted

if TYPE_CHECKING:
    from parsgd.results import Job

REASONS = 3  # that are told where no job has a result


def show_report(
    dirs: Sequence[Path],
    out: str | None = None,
    target: float | None = None,
    sort: str | None = None,
) -> int:
    """Build the report of these folders, print the table and where the page is.

    Returns:
        How many jobs failed, diverged or were interrupted.
    """
    # Not at the start of every command: they import what draws.
    from parsgd import report, results
    from parsgd.report import terminal
    from parsgd.report.remarks import set_aside

    jobs = results.load(dirs)
    if not any(job.metrics or job.status == "completed" for job in jobs):
        _say_nothing_ran(jobs)
        return len(jobs)
    paths = report.build(dirs, out, target, sort)
    if aside := set_aside(results.group(jobs)):
        print(aside)
    terminal.show(jobs, target, sort=sort)
    bad = [job for job in jobs if job.status != "completed"]
    for job in bad:
        print(f"{job.status}: {job.folder}: {job.reason}")
    done = len(jobs) - len(bad)
    print(f"{done} of {counted(len(jobs), 'job')} completed")
    print(
        f"table: {paths.markdown}, all columns: {paths.csv.name}, {paths.parquet.name}"
    )
    print(f"page: {paths.page}")
    return len(bad)


def _say_nothing_ran(jobs: Sequence["Job"]) -> None:
    """How many jobs ended how, and why: there is nothing to tabulate or draw."""
    counts = Counter(job.status for job in jobs)
    ended = ", ".join(f"{number} {status}" for status, number in counts.items())
    print(f"no job has a result, so there is no table: {ended} of {len(jobs)}")
    reasons = Counter(job.reason or "no reason given" for job in jobs)
    for reason, number in list(reasons.items())[:REASONS]:
        first = next(job for job in jobs if (job.reason or "no reason given") == reason)
        more = f" (and {number - 1} more)" if number > 1 else ""
        print(f"{first.status}: {first.folder}{more}: {reason}")
    if len(reasons) > REASONS:
        print(f"and {counted(len(reasons) - REASONS, 'other reason')}")
