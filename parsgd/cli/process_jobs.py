"""``hydra/launcher=processes``: joblib's processes, each in a pool of its own.

A pool of several is broken as a whole where one of its processes is killed, and ends
the jobs of the others.
"""

import contextlib
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from hydra_plugins.hydra_joblib_launcher._core import execute_job
from hydra_plugins.hydra_joblib_launcher.joblib_launcher import JoblibLauncher
from joblib import effective_n_jobs
from joblib.externals.loky.process_executor import (
    ProcessPoolExecutor,
    TerminatedWorkerError,
)

from parsgd.cli.children import ask_to_end, end_with, lose, this_process
from parsgd.cli.console import uncaught
from parsgd.cli.slots import at_once

# A process is killed, or its job ends it, as one that saves does at a signal.
ENDED = (TerminatedWorkerError, SystemExit, KeyboardInterrupt)
LOOK_SECONDS = 0.5  # no wait without an end: Polars restarts it at a Ctrl-C


def install() -> None:
    """Have Hydra take `ProcessJobs` where joblib's launcher is asked for."""
    name = f"{JoblibLauncher.__module__}.{JoblibLauncher.__name__}"
    Plugins.instance().class_name_to_class[name] = ProcessJobs


class ProcessJobs(JoblibLauncher):
    """Joblib's launcher, in which a process that is killed takes its own job alone."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        # At a Ctrl-C loky's own process may complain of what is gone with the pools.
        ignored = [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker"]
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, ignored))
        # They stay for the next batch of a search: a new process has JAX to import.
        # Each with the `placement.devices` that its JAX has started with.
        self._idle: list[tuple[str, ProcessPoolExecutor]] = []

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        """Run these jobs; one whose process ended before it did has the worst score."""
        waiting = deque(enumerate(job_overrides, initial_job_idx))
        running: dict[Future, tuple[ProcessPoolExecutor, str, int, Sequence[str]]] = {}
        found: dict[int, JobReturn] = {}
        most = at_once(effective_n_jobs(self.joblib["n_jobs"]))
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    job = waiting.popleft()
                    devices = self._devices(job[1])
                    future, pool = self._start(*job, devices)
                    running[future] = (pool, devices, *job)
                for future in wait(running, LOOK_SECONDS, FIRST_COMPLETED).done:
                    pool, devices, number, overrides = running.pop(future)
                    # Not raised: what a job ended by is not for the sweep to end by.
                    error = future.exception()
                    if isinstance(error, ENDED):
                        found[number] = lose(self, number, overrides, _why(error))
                        pool.shutdown(kill_workers=True)
                    else:
                        found[number] = future.result()
                        self._idle.append((devices, pool))
        except BaseException:
            try:
                ask_to_end(lambda: _workers(running))
            finally:
                for pool in [pool for _, pool in self._idle] + _pools(running):
                    pool.shutdown(kill_workers=True)
            raise
        return [found[number] for number in sorted(found)]

    def _start(
        self, number: int, overrides: Sequence[str], devices: str
    ) -> tuple[Future, ProcessPoolExecutor]:
        work = (number, overrides, self.hydra_context, self.config, self.task_function)
        work = (execute_job, *work, Singleton.get_state())
        # Of those with other devices one must end all the same, for its share.
        for entry in sorted(self._idle, key=lambda entry: entry[0] != devices):
            self._idle.remove(entry)
            pool = entry[1]
            if entry[0] != devices:
                pool.shutdown(kill_workers=True)
                break
            with contextlib.suppress(TerminatedWorkerError):  # killed between jobs
                return pool.submit(*work), pool
        pool = _pool()
        return pool.submit(*work), pool

    def _devices(self, overrides: Sequence[str]) -> str:
        """The job's ``placement.devices``, which are made once in each process."""
        assert self.hydra_context is not None and self.config is not None
        try:
            load = self.hydra_context.config_loader.load_sweep_config
            return str(load(self.config, [*overrides]).placement.devices)
        except Exception:  # which the job's own process will tell
            return ""


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, initializer=_begin, initargs=this_process())


def _pools(running: Mapping[Future, tuple]) -> list[ProcessPoolExecutor]:
    return [job[0] for job in running.values()]


def _workers(running: Mapping[Future, tuple]) -> list[int]:
    """The processes of jobs that have not ended; loky names them nowhere else."""
    pools = [job[0] for future, job in running.items() if not future.done()]
    return [pid for pool in pools for pid in [*(pool._processes or ())]]


def _begin(sweep: int, began: float) -> None:
    """In a new process: end with that of the sweep, and when it says so.

    Ctrl-C does not come by itself then: with the sweep's signal it would be the second.
    """
    os.setsid()
    sys.unraisablehook = uncaught
    family = (sweep, began, os.getppid())
    threading.Thread(target=end_with, args=family, daemon=True).start()


def _why(error: BaseException) -> str:
    """What became of a process; loky tells its exit code in its message alone.

    Example:
        >>> _why(TerminatedWorkerError("The exit codes ... are {SIGKILL(-9)}"))
        'its process was killed (SIGKILL), perhaps for want of memory'
        >>> _why(SystemExit(143))
        'its process was asked to end (SIGTERM)'
    """
    if isinstance(error, KeyboardInterrupt):
        error = SystemExit(128 + signal.SIGINT)
    if isinstance(error, SystemExit):
        with contextlib.suppress(TypeError, ValueError):  # no code of a signal
            number = signal.Signals(error.code - 128)  # type: ignore[operator]
            return f"its process was asked to end ({number.name})"
        return f"it ended its process ({error.code})"
    found = re.search(r"\{(SIG\w+)", str(error))
    if not found:
        return "its process ended before the job did"
    memory = ", perhaps for want of memory" if found[1] == "SIGKILL" else ""
    return f"its process was killed ({found[1]}){memory}"
