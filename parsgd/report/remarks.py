"""What a reader of the table must know, in the words of console and page alike."""

from collections.abc import Iterable, Sequence

from parsgd.results import Group
from parsgd.results.ranking import SHORT
from parsgd.words import counted

PAIRS = 3  # of folders that are named


def set_aside(groups: Sequence[Group]) -> str:
    """Which jobs do not count, and what to do about it; nothing where all count."""
    pairs = [pair for group in groups for pair in group.aside]
    if not pairs:
        return ""
    named = [f"{job.folder} = {counts.folder}" for job, counts in pairs[:PAIRS]]
    more = f" and {len(pairs) - PAIRS} more" if len(pairs) > PAIRS else ""
    return (
        f"{counted(len(pairs), 'job')} set aside: {', '.join(named)}{more}. Jobs with "
        "the same configuration and seed count once, the latest, and a completed one "
        "before others. If they differ, tell what differs (in a script "
        "parsgd.Recorder(..., config={...}))."
    )


def short_runs(tasks: Iterable[str], *, several: bool) -> str:
    """Why rows are sorted by samples; nothing where no task's are.

    Args:
        tasks: Those that are sorted by samples because their runs are short.
        several: Whether there are other tasks, so that these must be named.
    """
    named = ", ".join(tasks)
    if not named:
        return ""
    return (
        f"runs of less than {SHORT:g} s{f' (of {named})' if several else ''} say "
        "little about time: sorted by samples; sort=seconds sorts by time"
    )
