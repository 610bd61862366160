"""Which processes are still there."""

import time


def alive(pids):
    """Those that still run; who is dead may take a moment to go."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        left = [pid for pid in pids if _runs(pid)]
        if not left:
            break
        time.sleep(0.05)
    return left


def _runs(pid):
    try:
        with open(f"/proc/{pid}/status") as lines:
            return "Z (zombie)" not in lines.read()
    except OSError:
        return False
