"""Where the processes of a run meet: from the config, or from the environment."""

import errno
import math
import os
import socket
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from parsgd.cluster import gpus
from parsgd.cluster.gpus import ORTE
from parsgd.errors import UserError, first_line

KINDS = ("auto", "none", "manual")
# Set by `parsgd launch` and `parsgd lab` for the processes that they start.
COORDINATOR, PROCESSES, PROCESS = (
    "PARSGD_COORDINATOR",
    "PARSGD_PROCESSES",
    "PARSGD_PROCESS",
)
OWN = (COORDINATOR, PROCESSES, PROCESS)
INDEX = "JOB_COMPLETION_INDEX"  # of a pod of an indexed Job of Kubernetes
OPEN_MPI = "OMPI_COMM_WORLD_SIZE"  # of any version; JAX needs ORTE, before version 5


class Settings(NamedTuple):
    """How processes find each other; the config's ``cluster``.

    Attributes:
        kind: ``auto`` asks the environment (``parsgd launch``, Open MPI before
            version 5, Slurm, Kubernetes; TPU pods as JAX finds them, which was not
            tried), ``none`` is one process whatever the environment says, ``manual``
            takes the next three.
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
    """Whether the environment says that this is one of several processes, or may be.

    Markers of a cluster alone, such as a job number, do not make a run multi-process:
    there must be more than one task. A pod of an indexed Job may be one of several;
    how many there are Kubernetes alone knows, and `arguments` asks it.
    """
    env = os.environ if environment is None else environment
    pod = "KUBERNETES_SERVICE_HOST" in env and INDEX in env
    return pod or _several_tasks(env)


def _told(env: Mapping[str, str]) -> bool:
    """Whether any of the variables of `parsgd launch` is there."""
    return any(name in env for name in OWN)


def _several_tasks(env: Mapping[str, str]) -> bool:
    return (
        (_told(env) and env.get(PROCESSES) != "1")
        or _count(env, OPEN_MPI) > 1
        or _several_of_slurm(env)
        or "," in env.get("TPU_WORKER_HOSTNAMES", "")
    )


def _several_of_slurm(env: Mapping[str, str]) -> bool:
    # The shell of an interactive allocation may be a step too: one of a single task,
    # with the SLURM_NTASKS of the whole allocation.
    step = _count(env, "SLURM_STEP_NUM_TASKS", absent=2)
    return "SLURM_STEP_NODELIST" in env and min(step, _count(env, "SLURM_NTASKS")) > 1


def _count(env: Mapping[str, str], name: str, absent: int = 0) -> int:
    text = env.get(name, str(absent))
    return int(text) if text.isdigit() else 0


def arguments(settings: Settings) -> dict[str, Any] | None:
    """Arguments of ``jax.distributed.initialize``; None for one process.

    Raises:
        UserError: Settings that contradict each other, one of several processes of a
            launcher that JAX does not know, or a pod that cannot ask for the others.
    """
    kind, coordinator, processes, process, timeout = settings
    if kind not in KINDS:
        raise UserError(f"cluster={kind}: choose one of {', '.join(KINDS)}")
    if not 1 <= timeout < math.inf:
        raise UserError(f"cluster.timeout={timeout}: give seconds, 1 or more")
    given = {"coordinator": coordinator, "processes": processes, "process": process}
    if kind != "manual":
        for name, value in given.items():
            if value is not None:
                raise UserError(
                    f"cluster.{name}={value} is for cluster=manual, here it is "
                    f"cluster={kind}"
                )
        if kind == "none":
            return None
        if not in_environment():
            _refuse_unknown_launcher()
            return None
        if not _told(os.environ):
            _refuse_open_mpi_5()
            alone = not _several_tasks(os.environ) and _pods() == 1
            return None if alone else gpus.arguments(os.environ)
        known = {key: key in os.environ for key in OWN}
        if missing := [key for key, is_set in known.items() if not is_set]:
            found = next(key for key, is_set in known.items() if is_set)
            raise UserError(
                f"{found} is set without {missing[0]}: set {', '.join(OWN)}, or run "
                "alone with cluster=none"
            )
        coordinator = os.environ[COORDINATOR]
        processes, process = _number(PROCESSES), _number(PROCESS)
        if processes < 1:
            raise UserError(f"{PROCESSES}={processes}: give 1 or more")
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


def _pods() -> int:
    """How many pods of this one's Job run at once, as JAX counts them.

    Raises:
        UserError: They cannot be counted.
    """
    from jax._src.clusters import ClusterEnv

    # As JAX chooses: another cluster inside Kubernetes, such as a TPU's, comes first.
    clusters = [c for c in ClusterEnv._cluster_types if not c.opt_in_only_method]
    alone = "or run alone with cluster=none"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the package, which is told below
            found = next((c for c in clusters if c.is_env_present()), None)
        count = found.get_process_count() if found else 0
    except Exception as error:  # whatever Kubernetes' package raises
        raise UserError(
            f"{INDEX} is set, so this is a pod of an indexed Job, but how many there "
            f"are cannot be asked ({type(error).__name__}: {first_line(error)}): let "
            f"its service account read pods and jobs, {alone}"
        ) from error
    if not found:
        raise UserError(
            f"{INDEX} is set, so this is a pod of an indexed Job, but JAX asks for the "
            "others by the package kubernetes, which is not installed: pip install "
            f"kubernetes, {alone}"
        )
    return count


def _number(variable: str) -> int:
    text = os.environ[variable]
    if not text.isdigit():
        raise UserError(f"{variable}={text}: give a whole number")
    return int(text)


def _refuse_unknown_launcher() -> None:
    """Refuse to be one of many that do not know of each other.

    They would all train the same and write into the same folder.
    """
    size = os.environ.get("PMI_SIZE", "")
    if size.isdigit() and int(size) > 1:
        raise UserError(
            f"PMI_SIZE={size}: an MPI launcher that JAX does not know started {size} "
            f"processes. Use mpirun of Open MPI 4 or srun; {_by_hand(size, 'PMI_RANK')}"
        )


def _refuse_open_mpi_5() -> None:
    """Refuse before all of them wait in vain."""
    size = _count(os.environ, OPEN_MPI)
    if size > 1 and ORTE not in os.environ:
        raise UserError(
            f"{OPEN_MPI}={size}: Open MPI started {size} processes but without {ORTE}, "
            "by which JAX finds them and which Open MPI 5 no longer sets. Use mpirun "
            f"of Open MPI 4 or srun; {_by_hand(size, 'OMPI_COMM_WORLD_RANK')}"
        )


def _by_hand(size: int | str, rank: str) -> str:
    return (
        "or have a shell in each process say where they meet, as in sh -c 'parsgd "
        f"train cluster=manual cluster.coordinator=HOST:PORT cluster.processes={size} "
        f"cluster.process=${rank}'; or cluster=none for independent runs"
    )


def check_port(coordinator: str) -> None:
    """Refuse a port that another program has."""
    port = int(coordinator.rpartition(":")[2])
    try:
        probe = socket.socket(socket.AF_INET6)
    except OSError:  # a system without IPv6
        probe = socket.socket(socket.AF_INET)
    with probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            why = f"{error.strerror}; choose another"
            if taken:
                why = (
                    "another program has it, perhaps what is left of a run that was "
                    "killed, which ends by itself within some seconds: try again, or "
                    "choose another"
                )
            raise UserError(
                f"cluster.coordinator={coordinator}: process 0 cannot listen on port "
                f"{port}: {why}"
            ) from error
