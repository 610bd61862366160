"""Commands of parsgd in processes of their own, and which are still there."""

import socket
import subprocess
import sys
import time


def parsgd(*words, **options):
    """Start one."""
    command = [sys.executable, "-m", "parsgd.cli", *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def finished(process, seconds=240):
    """Its exit code, and what it wrote."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:  # or it would go on beside all other tests
        process.kill()
    return process.returncode, out, err


def free_address():
    """A host and a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def two_by_hand(folder, *words, other=()):
    """How two processes end that were started one by one, as on two machines.

    ``other`` are more words for the second.
    """
    where = free_address()
    both = []
    for process in range(2):
        manual = (f"cluster.coordinator={where}", f"cluster.process={process}")
        manual += ("cluster=manual", "cluster.processes=2", "hydra.run.dir=run")
        more = other if process else ()
        both.append(parsgd("train", *words, *manual, *more, cwd=folder))
    return [finished(process) for process in both]


def alive(pids):
    """Those that still run; who is dead may take a moment to go."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        left = [pid for pid in pids if runs(pid)]
        if not left:
            break
        time.sleep(0.05)
    return left


def runs(pid):
    """Whether there is such a process, and it has not ended."""
    try:
        with open(f"/proc/{pid}/status") as lines:
            return "Z (zombie)" not in lines.read()
    except OSError:
        return False
