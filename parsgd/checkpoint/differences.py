"""In what a run may differ from the one whose checkpoint it goes on from.

What decides how an update is computed must be the same: the strategy, the task, the
order of the data. Where it runs, how long, how often it is measured, and the
optimizer's numbers may change, and each change is printed. So may the number of workers
and their batch: see `parsgd.checkpoint.resize`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parsgd.checkpoint.leaves import Leaf
from parsgd.errors import FolderError
from parsgd.flat import ABSENT, leaves, under

# Keys, and groups of keys, that may differ: those that change no step but where it is
# computed, how many there are and how they are measured; and those that do.
LENGTH = ("epochs", "samples", "rounds")
AROUND = ("placement", *LENGTH, "target_accuracy", "evaluations", "train_examples")
AROUND += ("max_bad_rounds", "check_replicas")
FREE = (*AROUND, "workers", "worker_batch", "global_batch")
FREE += ("optimizer", "scaling.reference_batch")
SOURCES = ("task.path", "task.data_dir")  # where the same data lie
CHECKSUMS = {"data_checksum": "the data themselves", "code_checksum": "your own code"}
NAMES = {key: f"{what}, by a checksum" for key, what in CHECKSUMS.items()}
FIXED = ("optimizer._target_",)


def allowed(
    old: Mapping[str, Any], new: Mapping[str, Any], *, force: bool, folder: Path
) -> list[str]:
    """Lines that tell what has changed.

    Args:
        old: Facts of the run that was saved: a config, or what `parsgd.fit` knows.
        new: The same of the run that wants to go on.
        force: Allow everything.
        folder: For messages.

    Raises:
        FolderError: Lists what may not differ, with both values.
    """
    changed = dict(_changed(old, new))
    free = (*FREE, *_sources(old, new))
    wrong = {
        key: both
        for key, both in changed.items()
        if not under(key, free) or under(key, FIXED)
    }
    if wrong and not force:
        listed = "".join(
            f"\n  {NAMES.get(key, key)}: {after}, saved "
            + ("without it" if before == ABSENT else f"with {before}")
            for key, (before, after) in wrong.items()
        )
        raise FolderError(
            f"{folder} holds another run, so this one cannot go on from it:{listed}\n"
            "Repeat that run's options, choose another folder with hydra.run.dir=DIR, "
            "or force it with checkpoint.force=true (in a script, "
            "parsgd.Checkpoints(DIR, force=True))"
        )
    return [
        f"resumes with {key}={after}, was {before}"
        + (" (forced)" if key in wrong else "")
        for key, (before, after) in changed.items()
    ]


def trained_with(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """What has changed of what steps are computed with, each with both values.

    The length is of it where parts of it, ``${steps:...}``, stand in the config.

    Args:
        old: As for `allowed`.
        new: Likewise.

    Example:
        >>> trained_with({"epochs": 1, "seed": 0}, {"epochs": 2, "seed": 1})
        {'seed': (0, 1)}
    """
    parts = "${steps:" in f"{old} {new}"
    around = (*AROUND, *_sources(old, new))
    return {
        key: both
        for key, both in _changed(old, new)
        if not under(key, around) or (parts and key in LENGTH)
    }


def moved_phases(
    old: Sequence[Sequence[Any]], new: Sequence[Sequence[Any]], step: int
) -> list[str]:
    """Lines on phases that begin elsewhere, as a part of a length that has changed.

    Args:
        old: Start and local steps of each phase of the run that was saved.
        new: The same of the run that goes on.
        step: Where it goes on.

    Example:
        >>> moved_phases([[0, 1], [8, 1]], [[0, 1], [132, 1]], step=44)
        ['phase 1 begins at step 132, was 8: at step 44 it is left, and begins again']
        >>> moved_phases([[0, 1], [132, 1]], [[0, 1], [8, 1]], step=44)
        ['phase 1 begins at step 8, was 132: it begins at once, at step 44']
    """
    lines = []
    for phase, ((before, *_), (after, *_)) in enumerate(zip(old, new, strict=False)):
        if before != after:
            more = ""
            if before <= step < after:
                more = f": at step {step} it is left, and begins again"
            elif after < step < before:
                more = f": it begins at once, at step {step}"
            lines.append(f"phase {phase} begins at step {after}, was {before}{more}")
    return lines


def other_versions(
    old: Mapping[str, str | None], new: Mapping[str, str | None]
) -> list[str]:
    """A line that tells which versions have changed, if any has.

    Args:
        old: `parsgd.environment.versions` of the run that was saved.
        new: Those of the run that goes on.

    Example:
        >>> other_versions({"jax": "0.10.1", "optax": "0.2"}, {"jax": "0.10.2"})[0][:60]
        'saved with jax 0.10.1, now 0.10.2; optax 0.2, now not instal'
    """
    without = "not installed"
    unknown = None in (old.get("commit"), new.get("commit"))
    changed = [
        f"{name} {before or without}, now {new.get(name) or without}"
        for name, before in old.items()
        if before != new.get(name) and not (name == "commit" and unknown)
    ]
    if not changed:
        return []
    return [
        f"saved with {'; '.join(changed)}: it need not end bit for bit where the "
        "undisturbed run ends"
    ]


def same_leaves(old: Mapping[str, Leaf], new: Mapping[str, Leaf], folder: Path) -> None:
    """Refuse arrays that do not fit, whatever was forced.

    Raises:
        FolderError: Lists their names with both shapes.
    """
    wrong = [
        f"\n  {name}: {_shape(new.get(name))}, saved with {_shape(old.get(name))}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]
    if wrong:
        more = f"\n  and {len(wrong) - 20} more" if len(wrong) > 20 else ""
        raise FolderError(
            f"the state in {folder} does not fit this run:{''.join(wrong[:20])}{more}\n"
            "Repeat the options of the run that saved it, with the version of parsgd "
            "that did, or choose another folder"
        )


def _changed(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    before, after = _flat(old), _flat(new)
    for key in dict.fromkeys([*before, *after]):
        both = before.get(key, ABSENT), after.get(key, ABSENT)
        if both[0] != both[1]:
            yield key, both


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    # As JSON gives it back.
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in leaves(facts).items()
    }


def _sources(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys that only say where the data lie: none if they may be others."""
    sums = {facts.get("data_checksum") for facts in (old, new)}
    return SOURCES if len(sums) == 1 and None not in sums else ()


def _shape(leaf: Leaf | None) -> str:
    if leaf is None:
        return ABSENT
    each = "" if leaf.shared else " (each worker's own)"
    kind = f" {leaf.key}" if leaf.key else ""
    return f"{leaf.dtype}{list(leaf.shape)}{kind}{each}"
