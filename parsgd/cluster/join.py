"""How a process joins the others of a run.

JAX's distributed runtime connects the processes and moves the arrays. It must start
before JAX's backend does.
"""

import contextlib
import os
import re
import sys
import threading
from typing import Any

from parsgd.cluster import group, rendezvous, service
from parsgd.cluster.rendezvous import Settings
from parsgd.cluster.watch import SILENT_PART
from parsgd.errors import UserError, first_line

# A job of Slurm has one for all of its steps, Kubernetes one for all of its jobs.
PORT = (
    "no other run or program has the port that JAX chose on the machine of process 0: "
    "JAX_COORDINATOR_PORT=PORT in all processes sets another"
)
SAME_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


def start(settings: Settings) -> None:
    """Join the other processes, if there are any. Before JAX's backend starts.

    Args:
        settings: How they find each other.

    Raises:
        UserError: Settings that contradict each other, a coordinator that cannot be
            reached, a port that is taken, or a backend that already runs.
    """
    group.forget_start()
    arguments = rendezvous.arguments(settings)
    if arguments is None or group.is_connected():
        return
    import jax
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        raise UserError(
            "JAX has computed something already, and processes must join before: call "
            "parsgd.cluster.start first, or run alone with cluster=none"
        )
    where = arguments.get("coordinator_address")
    seconds = max(1, round(settings.timeout))
    if where and arguments["process_id"] == 0:
        rendezvous.check_port(where)
    _prepare()
    message = _too_late(seconds, where)
    patience = threading.Timer(seconds, _give_up, [message])
    patience.daemon = True
    patience.start()
    # The others need half of it to see that process 0 was killed, by its silence.
    linger = max(service.LINGER_SECONDS, 2 * settings.timeout / SILENT_PART)
    try:
        with service.apart(linger):
            jax.distributed.initialize(
                **arguments,
                # JAX would abort the process, without a word to the user.
                initialization_timeout=seconds + 60,
                heartbeat_timeout_seconds=max(seconds, 10),
                shutdown_timeout_seconds=seconds,
            )
    except Exception as error:
        first = first_line(error)
        if any(word in first for word in ("DEADLINE_EXCEEDED", "UNAVAILABLE")):
            raise UserError(f"{message} ({first})") from error
        raise UserError(
            f"the processes cannot be connected ({type(error).__name__}: {first}): "
            f"{_remedy(error, where)}cluster=none runs without the others, "
            "cluster=manual says where they are"
        ) from error
    finally:
        patience.cancel()
    group.connected(settings.timeout)
    _leave_at_a_fault()


def _prepare() -> None:
    """Set what JAX needs before it joins the others."""
    import jax

    # On CPU this scheduler may order a program's collectives in one process unlike in
    # another, and then they exchange what does not belong together.
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} {SAME_ORDER}".strip()
    _use_batch_scheduling()
    # Otherwise JAX aborts the process before it can say who is gone.
    jax.config.update("jax_enable_recoverability", True)
    # It would take SIGTERM for itself.
    jax.config.update("jax_enable_preemption_service", False)


def _too_late(seconds: int, where: str | None) -> str:
    """What to look at where the others did not come; JAX alone may know ``where``."""
    agree = "that they agree on cluster.coordinator" if where else f"that {PORT}"
    return (
        f"the processes did not find each other within cluster.timeout={seconds} s: "
        f"see that all were started, that {where or 'process 0'} can be reached from "
        f"every one of them, and {agree}"
    )


def _remedy(error: Exception, where: str | None) -> str:
    """What mends it, of which the first line of JAX's message says nothing."""
    if found := re.search(r"subdomain: (\S+)", str(error)):
        job = re.search(r"job-name: (\S+)", str(error))
        make = (
            f"add a Service named {found[1]} with clusterIP: None, "
            f"publishNotReadyAddresses: true and the selector job-name: {job[1]}, and "
            if job
            else ""
        )
        return f"{make}set subdomain: {found[1]} in the Job's template.spec; "
    port = isinstance(error, service.CannotListenError) and not where
    return f"see that {PORT}; " if port else ""


def _leave_at_a_fault() -> None:
    """Have the others be told why this process's script fails, and not only that."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        before(kind, error, trace)
        group.leave(1, f"{kind.__name__}: {first_line(error)}")

    sys.excepthook = hook


def _use_batch_scheduling() -> None:
    """Let no thread of this process interrupt another because it was woken.

    Threads started from here on take it over. gloo's reading thread wakes while the
    thread that sends still holds the connection's lock, and then spins until the
    scheduler's next tick: on one core some milliseconds for each collective.
    """
    if not hasattr(os, "SCHED_BATCH"):  # as on macOS
        return
    with contextlib.suppress(OSError):  # where it is forbidden it is slower
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _give_up(message: str) -> None:
    try:
        print(f"parsgd: {message}", file=sys.stderr, flush=True)
    finally:
        os._exit(2)
