"""The most memory that this process has used, as Linux tells it."""

from pathlib import Path

_jobs = 0  # that have begun in this process


def reset_peak_memory() -> bool:
    """Start a new high-water mark, where the system can: jobs may share a process.

    Returns:
        Whether the mark is this job's: it is the first, or the system could.
    """
    global _jobs
    _jobs += 1
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _jobs == 1
    return True


def peak_memory() -> int | None:
    """The process's high-water mark in bytes; None where the system has none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    kilobytes = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    return 1024 * int(kilobytes[0]) if kilobytes else None
