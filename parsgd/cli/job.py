"""One job: build a config, train, and leave its files behind, however it ends."""

import contextlib
import datetime
import logging
import math
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from parsgd import cluster, results
from parsgd.checkpoint import Checkpoints
from parsgd.checkpoint.agreed import CheckpointLost
from parsgd.cli import saving
from parsgd.cli.caching import cache_compilations
from parsgd.cli.earlier import (
    KEPT,
    end_of,
    is_done,
    keep_aside,
    refuse_other,
    remove_if_empty,
    settled,
    why_again,
)
from parsgd.cli.memory import peak_memory, reset_peak_memory
from parsgd.cli.resume import has_checkpoints
from parsgd.cluster.alike import check_alike
from parsgd.config.objects import Built, as_stored, build, task_of
from parsgd.config.own_code import code_checksum
from parsgd.config.targets import ALLOWED
from parsgd.data.checksum import data_checksum
from parsgd.errors import FolderError, UserError, by_interrupt, reason_of
from parsgd.progress import Progress
from parsgd.recorder import JobFiles, measured
from parsgd.results.writing import RESULT
from parsgd.train import fit
from parsgd.training.evaluate import best_score

log = logging.getLogger(__name__)
# It tells of accelerators that it did not find, as if that was an error.
logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)


class Outcome(NamedTuple):
    """How a job ended.

    Attributes:
        status: ``completed``, ``diverged`` or ``failed``.
        reason: Why it did not complete.
        mistake: Whether it failed by a user's mistake, not by a fault.
        begun: Whether it failed after it had begun to train.
        skipped: Whether its folder held the result already.
        refused: Whether its folder is another run's, and has been left as it was.
        score: What a search maximises: the best test accuracy, or minus the best test
            loss of a task without; NaN if it failed.
    """

    status: str
    reason: str | None = None
    mistake: bool = False
    begun: bool = False
    skipped: bool = False
    refused: bool = False
    score: float = math.nan


def run_job(
    cfg: DictConfig,
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    allowed: Sequence[str] = ALLOWED,
    alone: bool = False,
    choices: Mapping[str, str] | None = None,
    quiet: bool = False,
    console: Console | None = None,
) -> Outcome:
    """Run a job in its folder, unless the folder holds this very job's result.

    An exception becomes a failed job: its reason stands in ``result.json``, the
    traceback in the log, and on the console where the config says ``debug: true``.

    Args:
        cfg: As Hydra composed it.
        folder: The job's own folder; `parsgd.results` describes the files.
        overrides: What the user changed, for the record.
        allowed: Top-level packages whose functions the config may call.
        alone: Whether it is no job of a sweep. Then one that is refused leaves nothing,
            where in a sweep its reason becomes a row of the table.
        quiet: Show nothing while it runs: others run beside it.
        choices: Which choice of each group the config has, for the record.
        console: Where to show progress.

    Raises:
        UserError: The folder cannot be written.
    """
    console = console or Console(quiet=quiet or not cluster.is_first())
    display = Progress(console, brief=not alone)
    with contextlib.closing(JobRecorder(folder, display, overrides)) as recorder:
        return _run_job(cfg, folder, overrides, recorder, allowed, alone, choices)


def _run_job(
    cfg: DictConfig,
    folder: Path,
    overrides: Sequence[str],
    recorder: "JobRecorder",
    allowed: Sequence[str],
    alone: bool,
    choices: Mapping[str, str] | None,
) -> Outcome:
    first = cluster.is_first()
    record: dict[str, Any] = {"overrides": list(overrides), "started": _now()}
    record["versions"] = results.versions()  # of what runs, not of what is there later
    record["choices"] = dict(choices or {})
    config = as_stored(cfg)
    back = saving.goes_back(cfg)  # to before its end
    done = "" if back else settled(folder, config)
    if done:
        done = settled(folder, config, _checksums(config, allowed))
    if done := cluster.agree("settled", done):
        return _skipped(folder, done)
    try:
        kept = OmegaConf.to_container(cfg.checkpoint, resolve=True)
        check_alike(config | {"checkpoint": kept})
        cache_compilations()
        position = saving.position(folder, cfg)
        with cluster.busy():
            built = build(cfg, allowed=allowed, position=position)
        # Only now is it known what ${steps:...} is a part of.
        config = built.config
        with cluster.busy():
            sums = {
                "data_checksum": data_checksum(built.task.data),
                "code_checksum": code_checksum(config, allowed),
            }
        done = "" if back else settled(folder, config, sums)
        if done := cluster.agree("settled", done):
            return _skipped(folder, done)
        if back:
            saving.refuse_none(folder, cfg)
        if (folder / RESULT).exists() and not has_checkpoints(folder):
            if alone:
                refuse_other(folder, config, sums)
            recorder.say(why_again(folder, config, sums))
        code = sums["code_checksum"]
        lost: Sequence[str] = ()
        before = None
        try:
            saves = saving.checkpoints(cfg, folder, overrides, code)
            outcome, found = _train(built, recorder, saves)
        except CheckpointLost as error:
            lost, before = error.lines, error.step
        if lost:  # not in the clause above, which keeps the first try's arrays
            recorder.say("\n".join(lost))
            cfg.checkpoint.step = before
            position = saving.position(folder, cfg)
            with cluster.busy():
                built = build(cfg, allowed=allowed, position=position)
            saves = saving.checkpoints(cfg, folder, overrides, code)
            outcome, found = _train(built, recorder, saves)
    except Exception as error:
        if by_interrupt(error):  # it ends the command, not this job alone
            raise KeyboardInterrupt from error
        if cfg.get("debug"):
            traceback.print_exc()
        mistake = isinstance(error, UserError)
        outcome = Outcome("failed", reason_of(error), mistake, recorder.begun)
        with cluster.failing(reason_of(error)):
            outcome = _agreed(outcome)
        if not first:
            return outcome
        if isinstance(error, FolderError) and not recorder.begun:
            return outcome._replace(refused=True)
        if not recorder.begun:
            if alone and outcome.mistake:
                remove_if_empty(folder)
                return outcome
            if is_done(folder):
                keep_aside(folder)
                recorder.say(f"the files of the run before are kept, as *{KEPT}")
            recorder.begin(config)
        # For the log file alone: the console gets the reason.
        log.info("the job failed:\n%s", traceback.format_exc())
        found = {"summary": {}, "final": None, "best": None}
        found["machine"] = results.machine()
    else:
        outcome = _agreed(outcome)
        if not first:
            return outcome
        found["summary"]["code_checksum"] = sums["code_checksum"]
    record |= {"status": outcome.status, "reason": outcome.reason, "config": config}
    try:
        results.finish(folder, record | found)
    except UserError as error:  # such as a full disk, on which it failed already
        reason = f"{outcome.reason}; and {error}" if outcome.reason else f"{error}"
        return Outcome("failed", reason, mistake=True, begun=True)
    return outcome


def _checksums(
    config: Mapping[str, Any], allowed: Sequence[str]
) -> dict[str, str | None]:
    """Of a job's code and data; None for data that cannot be loaded any more."""
    data = None
    with cluster.busy(), contextlib.suppress(UserError):
        data = data_checksum(task_of(config, allowed).data)
    return {"data_checksum": data, "code_checksum": code_checksum(config, allowed)}


def _agreed(outcome: Outcome) -> Outcome:
    """The same, with what other processes say of their end if they say otherwise."""
    reasons = cluster.exchange("end of job", outcome.reason or "")
    others = [
        f"process {number}: {reason}"
        for number, reason in enumerate(reasons)
        if reason not in ("", reasons[0])
    ]
    if len({*reasons}) == 1:
        return outcome
    reason = "; ".join([reasons[0], *others] if reasons[0] else others)
    return outcome._replace(status="failed", reason=reason, score=math.nan)


class JobRecorder(JobFiles):
    """Begins the job's files, appends each record to them, and shows it."""

    def __init__(self, folder: Path, display: Progress, overrides: Sequence[str]):
        super().__init__(folder, display, overrides)
        self.config: dict[str, Any] = {}
        self.lines: tuple[str, ...] = ()

    def start(self, summary: dict[str, Any], lines: Sequence[str]) -> None:
        """Begin the files, and show sizes and placement."""
        # Not before: `fit` has refused by now what it refuses.
        self.begin(self.config)
        self._observer.start(summary, (*lines, *self.lines))


def _train(
    built: Built,
    recorder: JobRecorder,
    checkpoints: Checkpoints | None,
) -> tuple[Outcome, dict[str, Any]]:
    own_peak = reset_peak_memory()
    recorder.config, recorder.lines = built.config, built.lines
    run = fit(
        built.task,
        built.strategy,
        observer=recorder,
        checkpoints=checkpoints,
        **built.arguments,
    )
    found = measured(run)
    peak = peak_memory() if own_peak else None
    found["summary"] |= built.facts | {"peak_memory_bytes": peak}
    return Outcome(run.status, run.reason, score=best_score(run.history)), found


def _skipped(folder: Path, status: str) -> Outcome:
    reason, score = end_of(folder)
    return Outcome(status, reason, skipped=True, score=score)


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
