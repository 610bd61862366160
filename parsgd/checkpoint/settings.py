"""``Checkpoints``: where, how often and how many."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from parsgd.checkpoint.names import is_step
from parsgd.errors import FolderError, UserError, check_whole

FORMAT = 3  # of what is stored; 2 did not know the data by a checksum
NEWEST, BEST = "latest", "best"  # in place of a number of steps


class Checkpoints(NamedTuple):
    """Where and when `parsgd.fit` saves; if the folder holds a run, that one goes on.

    The last state is saved in any case: at the end of the run, and when the process is
    asked to end (Ctrl-C, SIGTERM, SIGHUP, SIGUSR2).

    Attributes:
        folder: Where to; nothing else may be in it.
        every_rounds: Save after each multiple of so many rounds, 1 or more.
        every_minutes: Save when so many minutes have passed since the last time, > 0.
        keep_last: Newest checkpoints to keep, 1 or more.
        keep_best: Besides them, those of the evaluations with the highest accuracy on
            the test split (the lowest loss where there is no accuracy). If it is not 0,
            every evaluation saves.
        step: Go on from this checkpoint: ``"latest"``, ``"best"`` or a number of steps.
            Newer ones are kept under other names.
        force: Go on although the run in the folder was another one, as far as its
            arrays fit.
        config: The config of the run, so that differences can be named; without it the
            sizes and the task's name are compared.
        overrides: The command line that made the config, which ``resume=`` repeats.
        code_checksum: Of the code that the run calls, so that one with other code is
            another run; None to compare none.
        again: What goes on with the run, for those who end it.
        quiet: Whether others say that a signal came.

    Example:
        >>> import parsgd
        >>> parsgd.Checkpoints("runs/first", every_rounds=100).keep_last
        2
    """

    folder: str | Path
    every_rounds: int | None = None
    every_minutes: float | None = None
    keep_last: int = 2
    keep_best: int = 0
    step: str | int = NEWEST
    force: bool = False
    config: Mapping[str, Any] | None = None
    overrides: Sequence[str] = ()
    code_checksum: str | None = None
    again: str = "the same script"
    quiet: bool = False


def check_format(meta: Mapping[str, Any], folder: Path) -> None:
    """Refuse a checkpoint of another version, whose facts may mean something else.

    Raises:
        FolderError: Names the version.
    """
    if meta.get("format") != FORMAT:
        raise FolderError(
            f"{folder} was written by another version of parsgd "
            f"({meta.get('versions', {}).get('parsgd', 'unknown')}, format "
            f"{meta.get('format')}): use that one, or "
            "choose another folder"
        )


def check(settings: Checkpoints) -> None:
    """Refuse values out of range.

    Raises:
        UserError: Names the value.
    """
    if not isinstance(settings, Checkpoints):
        raise UserError(
            f"checkpoints is a {type(settings).__name__}: give "
            "parsgd.Checkpoints(folder, every_rounds=100)"
        )
    # In the words of whoever set them.
    dot = "" if settings.config is None else "checkpoint."
    every = "every_" if settings.config is None else dot
    if settings.every_rounds is not None:
        check_whole(f"{every}rounds", settings.every_rounds)
    minutes = settings.every_minutes
    if minutes is not None and not minutes > 0:
        null = "None" if settings.config is None else "null"
        raise UserError(f"{every}minutes={minutes}: give a number above 0, or {null}")
    check_whole(f"{dot}keep_last", settings.keep_last)
    check_whole(f"{dot}keep_best", settings.keep_best, 0)
    step = str(settings.step)
    if step not in (NEWEST, BEST) and not is_step(step):
        raise UserError(
            f"{dot}step={step}: give {NEWEST}, {BEST}, or a number of steps"
        )
