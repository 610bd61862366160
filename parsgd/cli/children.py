"""Processes that run the jobs of a sweep: they end with it, and may end before.

A job whose process is killed, as the kernel does where memory is short, is a row of the
table like any other, and the other jobs go on.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import open_dict

from parsgd import results
from parsgd.cli.earlier import DONE, is_same
from parsgd.cli.search import WORST
from parsgd.errors import UserError

LOOK_SECONDS = 0.5
lost: list[int] = []  # jobs without a result, because their process ended before


def lose(
    launcher: Any, number: int, overrides: Sequence[str], why: str, more: str = ""
) -> JobReturn:
    """Tell what became of a job whose process ended before it did, and store it.

    Args:
        launcher: Hydra's, which had started the process.
        number: Of the job.
        overrides: Of the job.
        why: What is known of its process, for the table and the terminal.
        more: What else may help, for the terminal.

    Returns:
        What Hydra gets in place of the job's: the worst score, as of a failed job.
    """
    lost.append(number)
    config = launcher.hydra_context.config_loader.load_sweep_config(
        launcher.config, list(overrides)
    )
    with open_dict(config):
        config.hydra.job.num = number
        config.hydra.job.id = f"job_{number}"
    sweep = Path(config.hydra.sweep.dir)
    print(
        f"parsgd: job #{number}: {why}. The same command with hydra.sweep.dir={sweep} "
        f"does what is missing{more}",
        file=sys.stderr,
        flush=True,
    )
    with contextlib.suppress(UserError, OSError):  # a full disk, say; it was told
        _store(sweep / config.hydra.sweep.subdir, config, why)
    return JobReturn(status=JobStatus.COMPLETED, _return_value=WORST)


def _store(folder: Path, config: Any, why: str) -> None:
    from parsgd.config.objects import as_stored

    job = results.read_job(folder)  # whatever there is of it
    if job.status in DONE:  # it was killed after its end, or before it began anew
        return
    overrides = list(config.hydra.overrides.task)
    with open_dict(config):
        del config["hydra"]
    folder.mkdir(parents=True, exist_ok=True)
    stored = as_stored(config)
    begun = is_same(job.config, stored)  # else that is what another try left
    record = {
        "status": "interrupted",
        "reason": why,
        "config": job.config if begun else stored,
        "overrides": overrides,
        "started": job.started if begun else None,
        "summary": {},
        "final": job.metrics[-1] if begun and job.metrics else None,
        "best": None,
        "machine": results.machine(),
        "versions": results.versions(),
    }
    results.finish(folder, record)


def this_process() -> tuple[int, float]:
    """What `end_with` knows a process by."""
    return os.getpid(), psutil.Process().create_time()


def end_with(sweep: int, began: float, parent: int) -> None:
    """End this process once that of the sweep is gone, or the one that started it."""
    while os.getppid() == parent and _runs(sweep, began):
        time.sleep(LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _runs(pid: int, began: float) -> bool:
    try:
        process = psutil.Process(pid)
        dead = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return process.create_time() == began and not dead
    except psutil.NoSuchProcess:
        return False
