"""Sweeps whose jobs run in other processes, started by one of Hydra's launchers."""

import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException

from parsgd import cluster, cores
from parsgd.cli.slots import at_once, remember_gpus, share
from parsgd.errors import UserError, check_whole
from parsgd.placement.devices import (
    MOST_CPU_DEVICES,
    cpu_devices_of_each,
    want_cpu_devices,
)
from parsgd.signals import ENDING, is_same
from parsgd.words import counted

BASIC, JOBLIB = "BasicLauncher", "JoblibLauncher"
SLURM, LOCAL = "SlurmLauncher", "LocalLauncher"  # of submitit


def elsewhere(hydra: Any) -> bool:
    """Whether jobs run in processes of their own.

    Args:
        hydra: Hydra's part of the config.
    """
    return not hydra.launcher._target_.endswith(f".{BASIC}")


def by_environment(hydra: Any) -> bool:
    """Whether jobs find in the environment how many CPU devices to make.

    Joblib's and submitit's have a process of their own, which makes the devices of its
    job. Of other launchers it is not known whether jobs share a process.
    """
    name = hydra.launcher._target_.rpartition(".")[2]
    return elsewhere(hydra) and name not in (JOBLIB, SLURM, LOCAL)


def make_devices(wanted: Sequence[Any], others: bool = False) -> None:
    """Ask JAX for as many CPU devices as the largest of the placements needs.

    Args:
        wanted: Values of ``placement.devices``: counts, lists of indices, or None.
        others: Whether the processes that this one starts need them.

    Their number is fixed once JAX has started, so the first job of a process must have
    as many as the last. What is no count or list, or more than can be, is reported by
    the job that has it.
    """
    needed = [cpu_devices_of_each()]
    for value in wanted:
        numbers = list(value) if isinstance(value, Sequence) else [value]
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)
        if numbers and whole:
            listed = isinstance(value, Sequence)
            needed.append(max(numbers) + 1 if listed else numbers[0])
    able = [n for n in needed if n <= MOST_CPU_DEVICES]
    most = max(able, default=MOST_CPU_DEVICES)
    want_cpu_devices(most)
    if others:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(most)


def own_share(hydra: Any, cfg: Any) -> None:
    """Keep a job of several on this machine to its share of cores and accelerators.

    Schedulers of a cluster do so by themselves. The job's CPU devices are made after
    that: one for each core of its share, or those that its placement names.

    Args:
        hydra: Hydra's part of the config.
        cfg: The job's own config.
    """
    folder = Path(hydra.runtime.cwd) / hydra.sweep.dir / ".slots"
    if asked := _asked(hydra.launcher):
        # Submitit starts all jobs at once.
        wait = hydra.launcher._target_.endswith(f".{LOCAL}")
        share(folder, at_once(asked), wait=wait)
    try:
        devices = cfg.placement.devices
    except (OmegaConfBaseException, AttributeError):  # which the job will tell
        devices = None
    make_devices([devices])


def _asked(launcher: Any) -> int:
    """How many jobs may run at once by the settings; 0 where a scheduler decides."""
    if launcher._target_.endswith(f".{JOBLIB}"):
        from joblib import effective_n_jobs

        return effective_n_jobs(launcher.n_jobs)
    if launcher._target_.endswith(f".{LOCAL}"):
        return max(1, len(cores.usable()) // (launcher.cpus_per_task or 1))
    return 0


def tell_limit(hydra: Any) -> None:
    """Say what a machine is too small for: jobs with a GPU, or cores, of their own."""
    asked = _asked(hydra.launcher)
    if (count := at_once(asked)) < asked:
        print(
            f"{counted(count, 'job')} at a time in place of {asked}, for "
            f"{counted(count, 'GPU')}: each job has its own. JAX_PLATFORMS=cpu keeps "
            "jobs off the GPUs",
            flush=True,
        )
    if count > (usable := len(cores.usable())):
        # Only joblib's: of submitit's jobs no more run at once than have cores.
        few = f"hydra.launcher.n_jobs={usable} gives each its own"
        if usable == 1:
            few = "leave out hydra/launcher for one job after the other"
        print(
            f"{counted(count, 'job')} at a time for {counted(usable, 'core')}: they "
            f"share, so times of jobs cannot be compared; {few}",
            flush=True,
        )


def check(hydra: Any) -> None:
    """Refuse launchers that cannot do what they are asked for.

    Raises:
        UserError: Several processes would each start all jobs, or joblib would run
            them in this process.
    """
    if not elsewhere(hydra):
        return
    if cluster.processes() > 1:
        raise UserError(
            f"{hydra.launcher._target_} starts a process for each job, and this "
            f"command runs in {cluster.processes()} processes already: leave out "
            "hydra/launcher, or start one"
        )
    if hydra.launcher._target_.endswith(f".{SLURM}") and not shutil.which("srun"):
        raise UserError(
            "hydra/launcher=slurm: there is no srun here; run the command where "
            "Slurm's are, or take hydra/launcher=processes for jobs on this machine"
        )
    for key in ("nodes", "tasks_per_node"):
        count = getattr(hydra.launcher, key, None) or 1
        if count > 1:
            raise UserError(
                f"hydra.launcher.{key}={count}: each of the tasks would run the same "
                "job by itself; a job of a sweep is one process, which may have "
                "several devices. For a run of several processes start them by srun"
            )
    local = hydra.launcher._target_.endswith(f".{LOCAL}")
    if not local and not hydra.launcher._target_.endswith(f".{JOBLIB}"):
        return
    for number in {*ENDING} - {signal.SIGINT}:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _terminated)
    remember_gpus()
    if local:
        _check_local(hydra.launcher)
    else:
        _check_joblib(hydra.launcher)


def _check_joblib(launcher: Any) -> None:
    from hydra_plugins.hydra_joblib_launcher.config import JobLibLauncherConf
    from joblib import effective_n_jobs

    from parsgd.cli import process_jobs

    asked = launcher.n_jobs
    # Of its own numbers: -1 is one per core, -2 one less. It raises for 0.
    count = effective_n_jobs(asked) if asked else 0
    if count < 2:
        means = " is one at a time here" if asked < 0 else ""
        what = "the jobs in this process" if count else "no job"
        raise UserError(
            f"hydra.launcher.n_jobs={asked}{means}: joblib would run {what}; leave out "
            "hydra/launcher for one job after the other, or give 2 or more"
        )
    for key, usual in vars(JobLibLauncherConf()).items():
        value = getattr(launcher, key, usual)
        if key not in ("_target_", "n_jobs") and value != usual:
            raise UserError(
                f"hydra.launcher.{key}={value} would do nothing: jobs begin one by "
                "one in order, one at a time in each process, and of joblib's settings "
                "n_jobs alone counts; leave it out"
            )
    process_jobs.install()


def _check_local(launcher: Any) -> None:
    from parsgd.cli import local_jobs

    check_whole("hydra.launcher.timeout_min", launcher.timeout_min)
    if (wanted := getattr(launcher, "cpus_per_task", None)) is not None:
        check_whole("hydra.launcher.cpus_per_task", wanted)
        if wanted > (usable := len(cores.usable())):
            raise UserError(
                f"hydra.launcher.cpus_per_task={wanted}: this command may use "
                f"{counted(usable, 'core')}, so no job could have as many; give "
                f"{usable} or less"
            )
    local_jobs.check_useful(launcher)
    local_jobs.install()


_ended_by = signal.SIGINT
_ended_at = -math.inf


def _terminated(number: int, frame: Any) -> None:
    """As Ctrl-C, so that jobs save, and their processes end too."""
    global _ended_by, _ended_at
    if is_same(_ended_at):
        return
    _ended_by, _ended_at = signal.Signals(number), time.monotonic()
    raise KeyboardInterrupt


def ended_by() -> signal.Signals:
    """The signal that ended a sweep which was interrupted."""
    return _ended_by


def lost() -> bool:
    """Whether the process of a job ended before the job did, which was said then."""
    module = sys.modules.get("parsgd.cli.children")
    return bool(module and module.lost)
