"""The table of jobs on the console, and where page and figures are."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parsgd.words import counted

if TYPE_CHECKING:
    from parsgd.results import Job

REASONS = 3  # that are told of many jobs
NAMES = 10  # of jobs that ended for one of them
FEW = 5  # jobs of which each is told


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
        if aside := report.keep_aside(dirs, out):
            print(f"the report of before is kept in {aside}")
        return len(jobs)
    paths = report.build(dirs, out, target, sort)
    if aside := set_aside(results.group(jobs)):
        print(aside)
    terminal.show(jobs, target, sort=sort)
    bad = [job for job in jobs if job.status != "completed"]
    if len(bad) > FEW:
        _say_reasons(bad, lambda reason: reason.partition("\n")[0])
    else:
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
    _say_reasons(jobs, str)


def _say_reasons(jobs: Sequence["Job"], shown: Callable[[str], str]) -> None:
    """The first few of the reasons why these jobs ended, each with its jobs."""
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        reason = shown(job.reason or "no reason given")
        groups.setdefault((job.status, reason), []).append(job)
    for (status, reason), alike in [*groups.items()][:REASONS]:
        first, *others = [job.folder for job in alike]
        names = [f.name if f.parent == first.parent else str(f) for f in others]
        more = f" (and {len(names)} more: {', '.join(names[:NAMES])}" if names else ""
        more += ", ...)" if len(names) > NAMES else ")" if names else ""
        print(f"{status}: {first}{more}: {reason}")
    if rest := [*groups.values()][REASONS:]:
        names = [str(job.folder) for alike in rest for job in alike]
        more = ", ..." * (len(names) > NAMES)
        listed = f"{', '.join(names[:NAMES])}{more}"
        print(f"and {counted(len(rest), 'other reason')}: see {listed}")
