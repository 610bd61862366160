"""Waiting for what another process has changed in a shared folder."""

import time
from collections.abc import Callable

from parsgd import cluster

# Until a file is seen by all: over NFS what a folder holds is known for 30 s, usually.
SHARED_SECONDS = 40.0


def until(seen: Callable[[], bool]) -> bool:
    """Look again and again, for as long as a change may take to be seen here.

    Returns:
        Whether it was seen.
    """
    deadline = time.monotonic() + SHARED_SECONDS
    with cluster.busy():
        while not (found := seen()) and time.monotonic() < deadline:
            time.sleep(0.1)
    return found
