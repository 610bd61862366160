"""The accuracy that configurations race to, and the evaluation that reaches it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from parsgd.errors import UserError
from parsgd.results.groups import Group
from parsgd.results.reading import Job
from parsgd.words import counted

SHARE = 0.98  # of the best accuracy: near the top, yet within reach of most
FEW = 4  # runs; the best of fewer says little about what can be reached
OWN = "set one of your own with `parsgd report DIR target=ACCURACY`"


class Target(NamedTuple):
    """A test accuracy to reach.

    Attributes:
        value: None where there is none.
        origin: Where it comes from.
        caution: What weakens it, or nothing.
    """

    value: float | None
    origin: str
    caution: str = ""


NONE = Target(None, "no test accuracy was measured")


def targets(groups: Sequence[Group], target: float | None = None) -> dict[str, Target]:
    """The target of each task.

    Args:
        groups: Configurations, of one task or several.
        target: A test accuracy in (0, 1] for all of them. Without it, a task's target
            is the ``target_accuracy`` of its configs if all agree, else 98 % of the
            best test accuracy that any of its jobs reached, to three decimals. A task
            without accuracies has none, whatever is asked for.

    Raises:
        UserError: The target is not in (0, 1].
    """
    if target is not None and not 0 < target <= 1:
        raise UserError(
            f"target {target:g} is not an accuracy: give a fraction in (0, 1], such as "
            f"{target / 100:g}"
            if 1 < target <= 100
            else f"target {target:g} is not an accuracy: give a fraction in (0, 1]"
        )
    by_task: dict[str, list[Group]] = {}
    for group in groups:
        by_task.setdefault(group.task, []).append(group)
    return {task: _target(same, target) for task, same in by_task.items()}


def reached(job: Job, target: float | None) -> dict[str, Any] | None:
    """The first evaluation whose test accuracy is at least the target, or None.

    There is no interpolation between evaluations: the cost to the target is that of an
    evaluation that was made.
    """
    if target is None:
        return None
    for line in job.metrics:
        accuracy = line.get("test_accuracy")
        if accuracy is not None and accuracy >= target:
            return line
    return None


def _target(groups: Sequence[Group], asked: float | None) -> Target:
    jobs = [job for group in groups for job in group.jobs]
    lines = (line for job in jobs for line in job.metrics)
    if all(line.get("test_accuracy") is None for line in lines):
        return NONE
    return _default(groups) if asked is None else Target(asked, "as asked")


def _default(groups: Sequence[Group]) -> Target:
    jobs = [job for group in groups for job in group.jobs]
    first, *others = {_number(job.config.get("target_accuracy")) for job in jobs}
    if first is not None and not others and 0 < first <= 1:
        return Target(float(first), "the target_accuracy of every config")
    best = max((_best(job) for job in jobs), default=0.0)
    value = round(SHARE * best, 3)
    value = value if value <= best else SHARE * best  # of tiny ones
    if value <= 0:
        return NONE
    share = f"{SHARE:.0%} of the best, {best:.4f}"
    before = [x for job in jobs for x in _accuracies(job, trained=False)]
    untrained = max(before, default=0.0)
    if untrained >= best:
        return Target(None, f"no run did better than untrained, {untrained:.4f}")
    if untrained >= value:
        origin = f"{share}, is no more than untrained, {untrained:.4f}"
        return Target(None, origin, f"{OWN[0].upper()}{OWN[1:]}")
    return Target(value, share, _caution(groups))


def _number(value: Any) -> float | None:
    # A reference that leads nowhere is stored as it was written.
    return value if isinstance(value, int | float) else None


def _best(job: Job) -> float:
    return max(_accuracies(job, trained=True), default=0.0)


def _accuracies(job: Job, *, trained: bool) -> list[float]:
    """Of its evaluations after the first round, or of those before."""
    return [
        line["test_accuracy"]
        for line in job.metrics
        if line.get("test_accuracy") is not None
        and ((line.get("round") or 0) > 0) == trained
    ]


def _caution(groups: Sequence[Group]) -> str:
    runs = [sum(_best(job) > 0 for job in group.jobs) for group in groups]
    configurations = sum(n > 0 for n in runs)
    if configurations > 1 and sum(runs) >= FEW:
        return ""
    return (
        f"It rests on {counted(sum(runs), 'run')} of "
        f"{counted(configurations, 'configuration')} only: {OWN}"
    )
