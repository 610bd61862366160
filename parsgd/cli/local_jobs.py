"""``hydra/launcher=local``: submitit's jobs on this machine, which end with the sweep.

Submitit has its jobs outlive the command that started them, and takes one that was
killed for a fault of its own.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import submitit
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from hydra_plugins.hydra_submitit_launcher.config import LocalQueueConf
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import LocalLauncher
from omegaconf import OmegaConf
from submitit.core.utils import UncompletedJobError

from parsgd.cli.children import ask_to_end, end_with, lose, this_process
from parsgd.errors import UserError

# What submitit does with on one machine; the others are for schedulers.
PARAMETERS = ("timeout_min", "tasks_per_node", "nodes", "stderr_to_stdout")
# What else counts: for the shares of cores, and for where submitit writes.
OURS = ("_target_", "cpus_per_task", "submitit_folder")


def check_useful(launcher: Any) -> None:
    """Refuse settings that only a scheduler would heed.

    Args:
        launcher: Hydra's config of it.

    Raises:
        UserError: One is not as it is by itself.
    """
    usual = vars(LocalQueueConf())
    given: Any = vars(launcher)
    if OmegaConf.is_config(launcher):  # where a name refers to another's value
        given = OmegaConf.to_container(launcher, resolve=False)
    for key, value in given.items():
        if key not in PARAMETERS + OURS and value != usual.get(key):
            raise UserError(
                f"hydra.launcher.{key}={value} would do nothing: jobs on this machine "
                "are no scheduler's, which would heed it. Each gets an equal share of "
                "cores (cpus_per_task) and GPUs, and as much memory as there is; "
                "leave it out"
            )


def install() -> None:
    """Have Hydra take `LocalJobs` where submitit's launcher is asked for."""
    name = f"{LocalLauncher.__module__}.{LocalLauncher.__name__}"
    Plugins.instance().class_name_to_class[name] = LocalJobs


class LocalJobs(LocalLauncher):
    """Submitit's launcher, whose jobs end with this process, however it ends."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        """Run these jobs; one whose process ended before it did has the worst score."""
        executor = submitit.AutoExecutor(self.params["submitit_folder"], "local")
        given = {key: self.params.get(key) for key in PARAMETERS}
        executor.update_parameters(**{k: x for k, x in given.items() if x is not None})
        numbers = [initial_job_idx + i for i in range(len(job_overrides))]
        self.sweep = this_process()
        arguments = [
            (list(overrides), "hydra.sweep.dir", n, f"job_{n}", Singleton.get_state())
            for n, overrides in zip(numbers, job_overrides, strict=True)
        ]
        started: list[subprocess.Popen] = []
        try:
            with _own_sessions(started):
                jobs = executor.map_array(self, *zip(*arguments, strict=True))
            triples = zip(numbers, job_overrides, jobs, strict=True)
            return [self._result(*triple) for triple in triples]
        except BaseException:
            ask_to_end(lambda: _tasks(started))
            raise
        finally:
            _end(started)

    def __call__(self, *args: Any, **kwargs: Any) -> JobReturn:
        """Run one job, in the process that submitit started for it."""
        # Submitit ignores it, for jobs that its scheduler starts again.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        family = (*self.sweep, os.getppid())
        threading.Thread(target=end_with, args=family, daemon=True).start()
        return super().__call__(*args, **kwargs)

    def _result(
        self, number: int, overrides: Sequence[str], job: submitit.Job
    ) -> JobReturn:
        job.wait()
        if job.paths.result_pickle.exists():
            (found,) = job.results()
            if not isinstance(found._return_value, UncompletedJobError):
                return found
        why = (
            "its process ended before the job did: it was killed, perhaps for want of "
            "memory, or took longer than hydra.launcher.timeout_min="
            f"{self.params['timeout_min']}"
        )
        printed = f"; what it printed is in {job.paths.folder}"
        return lose(self, number, overrides, why, printed)


@contextlib.contextmanager
def _own_sessions(started: list[subprocess.Popen]) -> Iterator[None]:
    """Start processes in sessions of their own, and list them.

    Ctrl-C does not come to them by itself then: submitit's would print tracebacks.
    """
    popen = subprocess.Popen

    def start(*args: Any, **kwargs: Any) -> subprocess.Popen:
        process = popen(*args, start_new_session=True, **kwargs)
        started.append(process)
        return process

    subprocess.Popen = start  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        subprocess.Popen = popen


def _tasks(started: Sequence[subprocess.Popen]) -> list[int]:
    """The processes that run jobs; each has a parent, which ends with it."""
    found = []
    for controller in [process for process in started if process.poll() is None]:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(controller.pid).children()
            # One that has not started its job yet is the job's only process.
            found += [child.pid for child in children] or [controller.pid]
    return found


def _end(started: Sequence[subprocess.Popen]) -> None:
    """End what still runs of these processes, and of those that they started."""
    running = [process for process in started if process.poll() is None]
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in running:
        process.wait()
