"""The processes of a run: who is who, what they agree on, and who is gone.

They agree in the key-value store of JAX's distributed runtime, which works before a
backend does, on what they decide by: a folder's name, a clock, how a job ended.
"""

import contextlib
import datetime
import functools
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from parsgd import cores
from parsgd.cluster.watch import Watch
from parsgd.errors import UserError

SLICE_MS = 5000  # of a wait that only the watch ends


def _client() -> Any:
    """JAX's connection to the key-value store, or None.

    JAX has no public name for it, and what is agreed here is needed before a backend.
    """
    if "jax" not in sys.modules:
        return None
    from jax._src import distributed

    return distributed.global_state.client


def _state() -> Any:
    from jax._src import distributed

    return distributed.global_state


def is_connected() -> bool:
    """Whether this process has joined others, or itself alone."""
    return _client() is not None


def connected(timeout: float) -> None:
    """From here on, after `join.start`, this process watches the others.

    Args:
        timeout: Seconds after which one that does not answer is gone.
    """
    _watch.start(_client(), process(), processes(), timeout)


def processes() -> int:
    """How many processes this run has."""
    return 1 if _client() is None else _state().num_processes


def process() -> int:
    """This process's number, from 0 on."""
    return 0 if _client() is None else _state().process_id


def is_first() -> bool:
    """Whether this process is the one that shows and writes."""
    return process() == 0


_agreed: dict[str, int] = {}


def exchange(name: str, text: str, *, patient: bool = False) -> list[str]:
    """Every process's text, in the order of processes, on all of them.

    Args:
        name: What it is about; all processes ask in the same order.
        text: This process's.
        patient: Whether the others may come later than within ``cluster.timeout``.
    """
    client = _client()
    if client is None:
        return [text]
    number = _agreed[name] = _agreed.get(name, -1) + 1
    key = f"parsgd/{name}/{number}"
    # A value that is absent and one that is empty read the same.
    client.key_value_set(f"{key}/{process()}", f"={text}")
    if number > 1:  # who wrote the one before has read this, and I have read them all
        client.key_value_delete(f"parsgd/{name}/{number - 2}/{process()}")
    with together(f"agreeing on the {name}", patient=patient):
        return [_value(client, f"{key}/{other}")[1:] for other in range(processes())]


def _value(client: Any, key: str) -> str:
    """The value of a key, as soon as it has one; the watch ends what is in vain."""
    while True:
        try:
            return client.blocking_key_value_get(key, SLICE_MS)
        except Exception as error:  # of JAX's runtime, which has no type for it
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def agree(name: str, text: str) -> str:
    """Process 0's text, on all processes."""
    return exchange(name, text)[0]


@functools.cache
def _started() -> datetime.datetime:
    now = datetime.datetime.now().isoformat()
    return datetime.datetime.fromisoformat(agree("started", now))


def forget_start() -> None:
    """Let the clock of `started` start anew, as for the next command of a process."""
    _started.cache_clear()


def started(pattern: str) -> str:
    """When process 0 started its work, in words of ``strftime``, on all processes."""
    return _started().strftime(pattern)


def sharing_cores() -> int:
    """How many of the run's processes may use cores of this one, itself included."""
    if _client() is None:
        return 1
    own = json.dumps([socket.gethostname(), cores.usable()])
    return sum(_overlap(own, other) for other in exchange("cores", own))


def _overlap(own: str, other: str) -> bool:
    """Whether two processes, as machine and cores, have a core in common.

    Those of one machine may not: Slurm, mpirun and ``--pin`` bind each to its own.
    """
    (machine, mine), (its_machine, its) = json.loads(own), json.loads(other)
    return machine == its_machine and not {*mine}.isdisjoint(its)


@contextlib.contextmanager
def together(what: str, *, patient: bool = False) -> Iterator[None]:
    """What all processes do at once; one that does not come is reported by name.

    Args:
        what: In words, for the message.
        patient: Whether the others may come later than within ``cluster.timeout``.
    """
    _watch.enter(what, patient=patient)
    try:
        yield
    except Exception as error:
        if _client() is None or isinstance(error, UserError):
            raise
        _watch.explain()
        raise
    finally:
        _watch.leave()


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """While this process does what the others wait for, however long it takes."""
    before, _watch.busy = _watch.busy, True
    try:
        yield
    finally:
        _watch.busy = before


@contextlib.contextmanager
def failing(reason: str) -> Iterator[None]:
    """Meanwhile tell the others that this process cannot go on with a job."""
    _watch.fail(reason)
    try:
        yield
    finally:
        _watch.fail("")


def stuck(reason: str) -> None:
    """What this process waits in will not end: soon it ends itself and the others.

    Unless it comes to `failing` before.
    """
    _watch.stuck(reason)


def leave(code: int, reason: str = "") -> None:
    """End this process's part of a run, once all others have come to their end.

    Process 0 ends the store that the others read, so it is the last: they end here,
    and it alone returns if all went well.

    Args:
        code: The exit code.
        reason: Why it is not 0, for those that still wait for this process.
    """
    client = _client()
    if client is None:
        return
    with failing(reason or "it has ended") if code else contextlib.nullcontext():
        # A script may do much after its last run, such as plotting it.
        codes = exchange("end", str(code), patient=True)
    _watch.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    if not is_first():
        # Process 0 has said why, and its code tells; two failures would look like more.
        told = codes[0] != "0"
        with contextlib.suppress(Exception):  # a store that is gone needs no farewell
            client.key_value_set(f"parsgd/left/{process()}", "left")
        os._exit(0 if told else code)
    for other in range(1, processes()):
        # One that cannot be waited for is gone, which is all that matters here.
        with contextlib.suppress(Exception):
            client.blocking_key_value_get(f"parsgd/left/{other}", 5000)
    time.sleep(0.3)  # they end now; JAX would abort one whose store goes before
    if code:
        os._exit(code)
    import jax

    jax.distributed.shutdown()


_watch = Watch()
