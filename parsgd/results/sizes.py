"""The sizes of a job: as it ran, or as it was asked for."""

from typing import Any

from parsgd.results.reading import Job

BATCHES = ("worker_batch", "global_batch")
SIZES = ("workers", "local_steps", *BATCHES)


def sizes_of(job: Job) -> dict[str, int]:
    """Those that are known, by name; of the two batches one tells the other.

    A job that failed may have been asked for what is no size: that is left out.
    """
    both = {key: (job.summary.get(key), job.config.get(key)) for key in SIZES}
    found = {
        key: value
        for key, values in both.items()
        if (value := next(filter(_is_size, values), None)) is not None
    }
    workers, own = found.get("workers"), found.get("worker_batch")
    whole = found.get("global_batch")
    missing = {key for key, values in both.items() if values == (None, None)}
    if workers and own and "global_batch" in missing and _is_size(workers * own):
        found["global_batch"] = workers * own
    if workers and whole and "worker_batch" in missing and not whole % workers:
        found["worker_batch"] = whole // workers
    return found


def _is_size(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and abs(value) < 2**63
