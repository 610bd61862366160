"""Several processes as one run: who is who, what they agree on, and who is gone.

JAX's distributed runtime connects the processes and moves the arrays; it must start
before JAX's backend does. Its key-value store works at once, and processes agree there
on what they decide by: a folder's name, a clock, how a job ended.
"""

import contextlib
import datetime
import functools
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from parsgd.errors import UserError
from parsgd.watch import DEAD_SECONDS, Watch

KINDS = ("auto", "none", "manual")
# Set by `parsgd launch` and `parsgd lab` for the processes that they start.
COORDINATOR, PROCESSES, PROCESS = (
    "PARSGD_COORDINATOR",
    "PARSGD_PROCESSES",
    "PARSGD_PROCESS",
)


class Settings(NamedTuple):
    """How processes find each other; the config's ``cluster``.

    Attributes:
        kind: ``auto`` asks the environment (``parsgd launch``, Open MPI, Slurm,
            Kubernetes, TPU pods), ``none`` is one process whatever the environment
            says, ``manual`` takes the next three.
        coordinator: ``host:port`` of process 0, reachable from all.
        processes: How many there are.
        process: Which this one is, from 0 on.
        timeout: Seconds to wait for the others: at the start, and for one that does
            not come to the next collective.
    """

    kind: str = "auto"
    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    timeout: float = 60.0


def in_environment(environment: Mapping[str, str] | None = None) -> bool:
    """Whether the environment says that this is one of several processes.

    Markers of a cluster alone, such as a job number, do not make a run multi-process:
    there must be more than one task.
    """
    env = os.environ if environment is None else environment

    def number(name: str) -> int:
        text = env.get(name, "")
        return int(text) if text.isdigit() else 0

    return (
        number(PROCESSES) > 1
        or number("OMPI_COMM_WORLD_SIZE") > 1
        or (number("SLURM_NTASKS") > 1 and "SLURM_STEP_NODELIST" in env)
        or ("KUBERNETES_SERVICE_HOST" in env and "JOB_COMPLETION_INDEX" in env)
        or "," in env.get("TPU_WORKER_HOSTNAMES", "")
    )


def start(settings: Settings) -> None:
    """Join the other processes, if there are any. Before JAX's backend starts.

    Raises:
        UserError: Settings that contradict each other, a coordinator that cannot be
            reached, a port that is taken, or a backend that already runs.
    """
    arguments = _arguments(settings)
    if arguments is None or _client() is not None:
        return
    import jax

    where = arguments.get("coordinator_address")
    seconds = max(1, round(settings.timeout))
    if where and arguments["process_id"] == 0:
        _check_port(where)
    # Otherwise JAX aborts the process before it can say who is gone.
    jax.config.update("jax_enable_recoverability", True)
    # It would take SIGTERM for itself.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            **arguments,
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=max(seconds, 10),
            shutdown_timeout_seconds=seconds,
        )
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"the processes did not find each other within cluster.timeout={seconds} s "
            f"({first}): see that all were started, that {where or 'process 0'} can be "
            "reached from every one of them, and that they agree on cluster.coordinator"
        ) from error
    _watch.start(_client(), process(), processes(), settings.timeout)


def _arguments(settings: Settings) -> dict[str, Any] | None:
    """Arguments of ``jax.distributed.initialize``; None for one process."""
    kind, coordinator, processes, process, timeout = settings
    if kind not in KINDS:
        raise UserError(f"cluster={kind}: choose one of {', '.join(KINDS)}")
    if not timeout > 0:
        raise UserError(f"cluster.timeout={timeout}: give seconds, more than 0")
    given = {"coordinator": coordinator, "processes": processes, "process": process}
    if kind != "manual":
        for name, value in given.items():
            if value is not None:
                raise UserError(
                    f"cluster.{name}={value} is for cluster=manual, here it is "
                    f"cluster={kind}"
                )
        if kind == "none" or not in_environment():
            return None
        if COORDINATOR not in os.environ:
            return {}
        coordinator = os.environ[COORDINATOR]
        processes, process = int(os.environ[PROCESSES]), int(os.environ[PROCESS])
    else:
        for name, value in given.items():
            if value is None:
                raise UserError(
                    f"cluster=manual needs cluster.{name}, as in cluster=manual "
                    "cluster.coordinator=10.0.0.1:1234 cluster.processes=2 "
                    "cluster.process=0"
                )
    assert coordinator is not None and processes is not None and process is not None
    host, colon, port = coordinator.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(
            f"cluster.coordinator={coordinator}: give host:port of process 0, as in "
            "10.0.0.1:1234"
        )
    if not 0 <= process < processes:
        raise UserError(
            f"cluster.process={process}: the processes are numbered from 0 to "
            f"{processes - 1}, as cluster.processes={processes}"
        )
    if processes == 1:
        return None
    return {
        "coordinator_address": coordinator,
        "num_processes": processes,
        "process_id": process,
        "cluster_detection_method": "deactivate",
    }


def _check_port(coordinator: str) -> None:
    port = int(coordinator.rpartition(":")[2])
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UserError(
                f"cluster.coordinator={coordinator}: process 0 cannot listen on port "
                f"{port} ({error.strerror}); another program has it: choose another"
            ) from error


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


def exchange(name: str, text: str) -> list[str]:
    """Every process's text, in the order of processes, on all of them.

    Args:
        name: What it is about; all processes ask in the same order.
        text: This process's.
    """
    client = _client()
    if client is None:
        return [text]
    number = _agreed[name] = _agreed.get(name, -1) + 1
    key = f"parsgd/{name}/{number}"
    # A value that is absent and one that is empty read the same.
    client.key_value_set(f"{key}/{process()}", f"={text}")
    out = []
    with together(f"agreeing on the {name}"):
        for other in range(processes()):
            # Longer than the watch waits, which knows the reason.
            wait = round(1000 * (_watch.timeout + DEAD_SECONDS))
            answer = client.blocking_key_value_get(f"{key}/{other}", wait)
            out.append(answer[1:])
    return out


def agree(name: str, text: str) -> str:
    """Process 0's text, on all processes."""
    return exchange(name, text)[0]


@functools.cache
def _started() -> datetime.datetime:
    now = datetime.datetime.now().isoformat()
    return datetime.datetime.fromisoformat(agree("started", now))


def started(pattern: str) -> str:
    """When process 0 started its work, in words of ``strftime``, on all processes."""
    return _started().strftime(pattern)


def on_this_host() -> int:
    """How many of the run's processes share this machine and its cores."""
    if _client() is None:
        return 1
    return exchange("host", socket.gethostname()).count(socket.gethostname())


@contextlib.contextmanager
def together(what: str) -> Iterator[None]:
    """What all processes do at once; one that does not come is reported by name.

    Args:
        what: In words, for the message.
    """
    _watch.enter(what)
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
def failing(reason: str) -> Iterator[None]:
    """Meanwhile tell the others that this process cannot go on with a job."""
    _watch.fail(reason)
    yield
    _watch.fail("")


def leave(code: int) -> None:
    """End this process's part of a run, once all others have come to their end."""
    if _client() is None:
        return
    with failing("it has ended") if code else contextlib.nullcontext():
        exchange("end", str(code))
    _watch.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == 0:
        import jax

        jax.distributed.shutdown()
        return
    if is_first():
        time.sleep(1)  # with it the store goes, which ends those that still read it
    os._exit(code)


_watch = Watch()
