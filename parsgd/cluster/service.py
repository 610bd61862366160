"""The store that keeps a run together, in a process of its own.

JAX would keep it in process 0, and where that is gone abort all others with nothing but
a stack trace. Apart, it outlives process 0 until they have said who is gone.

Run as a program it is the store, and imports neither parsgd nor jax.
"""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAKER = "get_distributed_runtime_service"  # how JAX starts it
READY, END = "ready", "end"  # what is said over the pipes
LINGER_SECONDS = 60.0  # for those that are still connected, unless they need longer
TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
ESTABLISHED = "01"
# Sent to all of a job; as `parsgd.signals` has them.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


class CannotListenError(RuntimeError):
    """The store could not start: as a rule because its port is taken."""


class Service:
    """The handle that process 0 has, in place of JAX's own.

    Args:
        address: Where it listens, as ``[::]:1234``.
        processes: How many connect to it.
        linger: Seconds that it outlives process 0 at most, while others are connected.
        options: Of JAX's service.

    Raises:
        CannotListenError: It cannot listen there.
    """

    def __init__(
        self,
        address: str,
        processes: int,
        *,
        linger: float = LINGER_SECONDS,
        **options: Any,
    ):
        words = [address, processes, linger, options]
        self._popen = subprocess.Popen(
            [sys.executable, "-P", __file__, json.dumps(words)],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # A signal to all of process 0's group is not for it.
            start_new_session=True,
        )
        assert self._popen.stdout is not None
        if (answer := self._popen.stdout.readline().strip()) != READY:
            why = answer or "the store of the run has ended at its start"
            raise CannotListenError(why)

    def shutdown(self) -> None:
        """End it at once."""
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            self._popen.communicate(END, timeout=5)


@contextlib.contextmanager
def apart(linger: float = LINGER_SECONDS) -> Iterator[None]:
    """Within, ``jax.distributed.initialize`` starts the store as a process.

    JAX has no setting for it.

    Args:
        linger: Seconds that it outlives process 0 at most, while others are connected.

    Raises:
        RuntimeError: It has started the store in some other way.
    """
    import jax
    from jax._src import distributed
    from jaxlib import _jax as module  # pyright: ignore[reportAttributeAccessIssue]

    before = getattr(module, MAKER, None)
    setattr(module, MAKER, functools.partial(Service, linger=linger))
    try:
        yield
    finally:
        setattr(module, MAKER, before) if before else delattr(module, MAKER)
    # None in other processes than the first.
    if not isinstance(distributed.global_state.service, Service | None):
        raise RuntimeError(
            f"JAX {jax.__version__} starts the store of a run in a way of its own, and "
            "all processes would abort without a word where process 0 is gone: use "
            "JAX 0.10, which parsgd was tested with"
        )


def _serve(
    address: str, processes: int, linger: float, options: dict[str, Any]
) -> None:
    """Be the store, until process 0 has ended and nobody else is there."""
    # Who sends them to process 0 means it to save first; it ends the store.
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    try:
        service = _jax.get_distributed_runtime_service(address, processes, **options)
    except Exception as error:  # of JAX's runtime, which has no type for it
        print(str(error).partition("\n")[0], flush=True)
        return
    print(READY, flush=True)
    if sys.stdin.read() != END:
        _linger(int(address.rpartition(":")[2]), linger)
    service.shutdown()


def _linger(port: int, seconds: float) -> None:
    """Wait until nobody is connected any more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and _connected(port):
        time.sleep(0.2)


def _connected(port: int) -> bool:
    """Whether somebody is; True where the system does not tell."""
    known = False
    for table in map(Path, TABLES):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in table.read_text().splitlines()[1:]]
            known = True
            for row in rows:
                own = int(row[1].rpartition(":")[2], 16)
                if own == port and row[3] == ESTABLISHED:
                    return True
    return not known


if __name__ == "__main__":
    _serve(*json.loads(sys.argv[1]))
