"""Which cores this process may use."""

import os


def usable() -> list[int]:
    """Their numbers; a container or taskset may leave fewer than the machine has.

    Example:
        >>> len(usable()) >= 1
        True
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # as on macOS
