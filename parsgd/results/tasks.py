"""What the tasks of jobs are called."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from parsgd.results.reading import Job
from parsgd.results.varied import choice_of, found, name_of_call, overrides

PATH = "task.path"
FILES = ("csv", "npz", "text")  # tasks whose data are whatever file they are given


def tasks_of(jobs: Sequence[Job]) -> list[str]:
    """The name of each job's task: of data in files of the user's own, the file's.

    Where several files have one name, as much of their folders as tells them apart, and
    the ending of those that differ in nothing else, or are called as a task is.
    """
    paths = files_of(jobs)
    names: dict[Path, str] = {}
    files = {path for path in paths if path is not None}
    others = {
        choice_of(job, "task")
        for job, path in zip(jobs, paths, strict=True)
        if path is None
    }
    for path in files:
        plain = path.with_suffix("")
        twins = {other for other in files if other.with_suffix("") == plain}
        ends = [_ending(other, path) for other in files - twins]
        names[path] = "/".join(plain.parts[-1 - max(ends, default=0) :])
        if len(twins) > 1 or names[path] in others:
            names[path] += path.suffix
    return [
        choice_of(job, "task") if path is None else names[path]
        for job, path in zip(jobs, paths, strict=True)
    ]


def files_of(jobs: Sequence[Job]) -> list[Path | None]:
    """The file of each job's data; None where they come from elsewhere.

    Where one file has been called by several paths, by the first of them: jobs with
    equal data have one. A job that failed has told nothing of its data, and goes with
    the first job of its path.
    """
    pairs = [(_file(job), job.summary.get("data_checksum")) for job in jobs]
    of_data: dict[str, Path] = {}
    of_path: dict[Path, Path] = {}
    for path, data in pairs:
        if path is not None and data is not None:
            of_path.setdefault(path, of_data.setdefault(str(data), path))
    return [
        None if path is None else of_data.get(str(data)) or of_path.get(path, path)
        for path, data in pairs
    ]


def _file(job: Job) -> Path | None:
    path = found(job.config, PATH)
    # Not by `choice_of`: earlier results of the same task have no choices.
    task = overrides(job).get("task") or name_of_call(job, "task")
    own = task in FILES and isinstance(path, str)
    return Path(path) if own else None


def _ending(path: Path, other: Path) -> int:
    """How many parts two paths have in common, from the last on."""
    both = zip(
        reversed(path.with_suffix("").parts),
        reversed(other.with_suffix("").parts),
        strict=False,
    )
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))
