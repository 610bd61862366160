"""What a job's summary says of how it came about, and no config does."""

from collections.abc import Mapping
from typing import Any

from parsgd.flat import OTHER
from parsgd.results.reading import Job
from parsgd.words import counted

RESUMED = "resumed"  # what a run is said to be that went on with other settings
PROCESSES = "processes"  # of runs of several: their seconds are of another kind
COUNTED = {"devices": "device", "processes": "process", "cores": "core"}
LINK = "link"  # between them, where it has a name
SAID = (RESUMED, PROCESSES, LINK)  # even where they tell nothing apart


def said(job: Job, key: str) -> Any:
    """What no config says: of other settings before, of processes, of their network."""
    if key == RESUMED:
        return _resumed(job)
    if key == LINK:
        return link_of(job)
    count = processes_of(job)
    return count if count != 1 else None


def processes_of(job: Job) -> int | None:
    """How many processes it ran on; None where it never came to run."""
    place = placement_of(job)
    count = place.get("processes", 1) if place else None
    return count if isinstance(count, int) else None


def link_of(job: Job) -> str | None:
    """What the network between its processes is called; None where it has no name."""
    name = job.summary.get("link")
    return name if isinstance(name, str) else None


def _resumed(job: Job) -> str | None:
    """Of a run that went on as another: its numbers of workers, and what it was."""
    told = []
    before = job.summary.get("earlier_workers") or []
    counts = [*(count for count, _ in before), job.summary.get("workers")]
    for (old, step), new in zip(before, counts[1:], strict=True):
        told.append(f"{old} -> {new} workers at step {step}")
    for values, step in job.summary.get("earlier_settings") or ():
        named = [OTHER.get(key, f"{key}={x}") for key, x in values.items()]
        told.append(f"{' and '.join(named)} until step {step}")
    for place, step in job.summary.get("earlier_placements") or ():
        named = [_placed(key, x) for key, x in place.items()]
        told.append(f"{' and '.join(named)} until step {step}")
    return ", ".join(told) or None


def _placed(key: str, value: Any) -> str:
    """A part of a place in words: a number of devices, a placement, or a name."""
    if key in COUNTED and isinstance(value, int):
        return counted(value, COUNTED[key])
    return f"{'placement' if key == 'kind' else key}={value}"


def placement_of(job: Job) -> Mapping[str, Any]:
    """How the job's workers were placed, or nothing where that is not recorded."""
    placement = job.summary.get("placement")
    return placement if isinstance(placement, Mapping) else {}


def lanes_of(job: Job) -> int:
    """How many workers shared a device at once; 0 where that is not recorded."""
    lanes = placement_of(job).get("lanes")
    return lanes if isinstance(lanes, int) else 0
