"""Processes that run the jobs of a sweep: they end with it, and may end before.

A sweep that is asked to end asks them first, so that jobs that keep checkpoints save.

A job whose process is killed, as the kernel does where memory is short, is a row of the
table like any other, and the other jobs go on.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import open_dict

from parsgd import results
from parsgd.cli.earlier import DONE, is_same
from parsgd.cli.search import WORST
from parsgd.config.overrides import typed
from parsgd.errors import UserError
from parsgd.words import counted

LOOK_SECONDS = 0.5
ASKED_SECONDS = 0.1
QUIET_SECONDS = 1.0  # jobs that have nothing to save have ended by then
GRACE_SECONDS = 300.0  # for the round that a job computes, and its save
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
        f"parsgd: job #{number}: {why}. The same command with "
        f"{typed('hydra.sweep.dir', sweep)} does what is missing{more}",
        file=sys.stderr,
        flush=True,
    )
    with contextlib.suppress(UserError, OSError):  # a full disk, say; it was told
        _store(sweep / config.hydra.sweep.subdir, config, why)
    return JobReturn(status=JobStatus.COMPLETED, _return_value=WORST)


def _store(folder: Path, config: Any, why: str) -> None:
    from parsgd.config.chosen import chosen
    from parsgd.config.objects import as_stored

    job = results.read_job(folder)  # whatever there is of it
    if job.status in DONE:  # it was killed after its end, or before it began anew
        return
    overrides = list(config.hydra.overrides.task)
    hydra = config.hydra
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
        "choices": chosen(hydra, stored),
        "started": job.started if begun else None,
        "summary": {},
        "final": job.metrics[-1] if begun and job.metrics else None,
        "best": None,
        "machine": results.machine(),
        "versions": results.versions(),
    }
    results.finish(folder, record)


def ask_to_end(running: Callable[[], Iterable[int]]) -> None:
    """Send SIGTERM to the processes of jobs, as a run gets it, and wait for them.

    A job that keeps checkpoints saves; another ends at once. It returns when all have
    ended or `GRACE_SECONDS` have passed: the caller ends what is left.

    Args:
        running: Gives the processes of jobs that have not ended, one for each.

    Raises:
        KeyboardInterrupt: A second signal came.
    """
    asked: set[int] = set()
    began, told = time.monotonic(), False
    while left := {*running()}:
        for pid in left - asked:  # once: a second would end it before its save
            asked.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        waited = time.monotonic() - began
        if waited > GRACE_SECONDS:
            return
        if waited > QUIET_SECONDS and not told:
            told = True
            _tell_wait(len(left))
        time.sleep(ASKED_SECONDS)


def _tell_wait(count: int) -> None:
    with contextlib.suppress(OSError):  # a terminal that was closed
        print(
            f"parsgd: waiting for {counted(count, 'job')} to end, and to save if "
            f"checkpoint.* says so, {GRACE_SECONDS:.0f} seconds at most; a second "
            "signal ends them at once",
            file=sys.stderr,
            flush=True,
        )


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
