"""What is said of a run when it has ended."""

from pathlib import Path
from typing import TYPE_CHECKING

from parsgd.results import read_job

if TYPE_CHECKING:
    from parsgd.cli.job import Outcome


def more_to_do(folder: Path) -> str:
    """What a run that is complete needs to go on."""
    job = read_job(folder)
    if job.summary.get("stopped") == "target_accuracy":
        return f"target_accuracy above {job.config.get('target_accuracy')}, or null,"
    return "a larger budget"


def target_of(folder: Path) -> str:
    """Whether a run has reached the accuracy that it was to stop at."""
    job = read_job(folder)
    target, summary = job.config.get("target_accuracy"), job.summary
    if target is None:
        return ""
    if summary.get("stopped") != "target_accuracy":
        return f"; target_accuracy={target} was not reached"
    return (
        f"; target_accuracy={target} was reached at step {summary['steps']} of "
        f"{summary['planned_steps']}"
    )


def ending(outcome: "Outcome") -> str:
    """How a job ended, if it did not complete; or that it need not run."""
    if outcome.skipped:
        if outcome.status == "completed":
            return "completed before: skipped"
        return (
            f"{outcome.status} before: skipped: {outcome.reason}. It runs again in "
            "another folder, in a sweep also with another configuration"
        )
    if outcome.mistake:
        return str(outcome.reason)
    return ": ".join(part for part in outcome[:2] if part)
