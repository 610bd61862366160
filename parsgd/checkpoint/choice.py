"""Which of a folder's checkpoints a run goes on from; read without Orbax."""

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parsgd.checkpoint.names import is_step, read_meta, steps_in
from parsgd.checkpoint.settings import BEST, NEWEST
from parsgd.errors import FolderError
from parsgd.training.evaluate import score_of


def chosen(folder: Path, steps: Sequence[int], step: str | int) -> int:
    """The number of steps that is meant by ``latest``, ``best`` or a number.

    Args:
        folder: With the checkpoints.
        steps: Of those that are complete, the newest first.
        step: What was asked for.

    Raises:
        FolderError: There is no such checkpoint.
    """
    step = str(step)
    if not steps:
        asked = "" if step == NEWEST else f"step={step}: "
        raise FolderError(
            f"{asked}{folder} holds no checkpoint: runs save with "
            "checkpoint.minutes=M or checkpoint.rounds=N (in a script, with "
            "parsgd.Checkpoints)"
        )
    if step == NEWEST:
        return steps[0]
    if step == BEST:
        return _best(folder, steps)
    if not is_step(step) or int(step) not in steps:
        raise FolderError(
            f"step={step}: {folder} holds the steps "
            f"{', '.join(map(str, reversed(steps)))}; or say latest or best"
        )
    return int(step)


def meta_to_go_on_from(folder: Path, step: str | int) -> dict[str, Any] | None:
    """What is stored beside the arrays of the checkpoint that is chosen.

    Or of the newest before it that can be read; None if there is none.

    Args:
        folder: With the checkpoints, if it exists.
        step: What was asked for.
    """
    steps = steps_in(folder)
    with contextlib.suppress(FolderError):  # the run itself says what is wrong
        wanted = chosen(folder, steps, step)
        for one in (one for one in steps if one <= wanted):
            with contextlib.suppress(OSError, ValueError):
                return read_meta(folder, one)
    return None


def _best(folder: Path, steps: Sequence[int]) -> int:
    history: Sequence[Any] = ()
    for step in steps:
        with contextlib.suppress(OSError, ValueError):  # the newest to be read
            history = read_meta(folder, step)["history"]
            break
    # The start is evaluated and never saved.
    scored = [r for r in history if r["step"] and score_of(r) > -math.inf]
    if not scored:
        raise FolderError(
            f"{folder}: no finite evaluation is recorded, so none is known to be the "
            "best"
        )
    best = max(scored, key=score_of)["step"]
    if best not in steps:
        listed = ", ".join(map(str, reversed(steps)))
        raise FolderError(
            f"{folder}: the best evaluation was at step {best}, which was not kept: "
            f"runs keep it with checkpoint.keep_best=1. Here are {listed}"
        )
    return best
