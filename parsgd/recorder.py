"""What a run of a script leaves on disk, for ``parsgd report``."""

import contextlib
import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from parsgd import cluster, results
from parsgd.errors import UserError, check_accuracy
from parsgd.flat import UNSTORED
from parsgd.results.said import SAID
from parsgd.results.writing import plain
from parsgd.training.meter import Record
from parsgd.training.observer import Observer, check_observer
from parsgd.training.run import Run

# What tells runs apart besides what a script says, by its name in the summary.
FACTS = ("task", "seed", "workers", "local_steps", "worker_batch", "global_batch")
FACTS += ("tail", "shards", "label_skew", "micro_batches")
# Names that mean something in a config, and what the files of a job keep apart.
RESERVED = {"strategy", "steps", "placement", *FACTS, *SAID, *UNSTORED}


class JobFiles(Observer):
    """Appends the records of a run to the files of a job, and tells another observer.

    The first of several processes writes; all call the same.

    Args:
        folder: The job's own, from `begin` to `close`.
        observer: Is told everything too.
        overrides: What the user of the command changed, for the record.

    Attributes:
        begun: Whether the files were begun.
    """

    def __init__(
        self,
        folder: Path,
        observer: Observer,
        overrides: Sequence[str] | None = None,
    ):
        self._folder, self._observer = folder, observer
        self._overrides = overrides
        self._held = contextlib.ExitStack()
        self.begun = False

    def begin(self, config: Mapping[str, Any]) -> None:
        """Hold the folder, and begin the files; what they held is replaced."""
        if cluster.is_first():
            self._held.enter_context(results.held(self._folder))
            results.begin(self._folder, config, self._overrides)
        self.begun = True

    def close(self) -> None:
        """Let go of the folder."""
        self._held.close()

    def resumed(self, history: Sequence[Record]) -> None:
        """Write the records of the run that this one goes on from."""
        # What came after the checkpoint is computed again.
        for record in history if cluster.is_first() else ():
            results.append(self._folder, record)
        self._observer.resumed(history)

    def progress(self, step: int, steps: int, record: Record) -> None:
        """Tell the other observer."""
        self._observer.progress(step, steps, record)

    def record(self, record: Record) -> None:
        """Add an evaluation."""
        if cluster.is_first():
            results.append(self._folder, record)
        self._observer.record(record)

    def say(self, text: str) -> None:
        """Tell the other observer."""
        self._observer.say(text)

    def end(self, run: Run | None) -> None:
        """Tell the other observer."""
        self._observer.end(run)


class Recorder(JobFiles):
    """Keeps a run in the files of a job, as ``parsgd train`` does.

    ``parsgd report FOLDER`` then makes table, figures and page of all runs below a
    folder, however they were started. Runs whose config differs in ``seed`` only are
    one row, with a mean and an error.

    Args:
        folder: The run's own; what an earlier run left there is replaced.
        strategy: How tables call the algorithm.
        config: What else tells this run from others, as ``{"learning_rate": 0.1}``:
            numbers, words, lists and dicts. Runs that differ in nothing that is told
            here count as repeats, and of one seed only the latest counts. Task, seed,
            sizes, steps and placement are filled in.
        observer: Is told too, such as a `parsgd.Progress`.

    Raises:
        UserError: A config that cannot be stored or has a name that is filled in; and,
            when the run starts, a folder that cannot be written or that another run
            holds.

    Example:
        >>> import optax, parsgd, tempfile
        >>> runs = tempfile.TemporaryDirectory()
        >>> for seed in (0, 1):
        ...     run = parsgd.fit(
        ...         parsgd.digits(), parsgd.single(optax.sgd(0.1)), seed=seed,
        ...         worker_batch=32, epochs=1, evaluations=1,
        ...         observer=parsgd.Recorder(f"{runs.name}/single-{seed}", "single"))
        >>> jobs = parsgd.results.load(runs.name)
        >>> parsgd.results.table(jobs)["n"].to_list()
        [2]
        >>> runs.cleanup()
    """

    def __init__(
        self,
        folder: str | Path,
        strategy: str,
        *,
        config: Mapping[str, Any] | None = None,
        observer: Observer | None = None,
    ):
        if not isinstance(strategy, str):
            raise UserError(
                f"strategy={strategy!r:.60}: a Recorder keeps the algorithm's name, "
                "such as 'local_sgd'"
            )
        if not isinstance(folder, str | os.PathLike) or not str(folder):
            raise UserError(
                f"folder={folder!r:.60}: give the name of a folder for this run alone"
            )
        observer = Observer() if observer is None else observer
        check_observer(observer)
        super().__init__(Path(folder), observer)
        self._strategy = strategy
        self._more = _checked({} if config is None else config)
        self._config: dict[str, Any] = {}
        self._started = ""
        self._versions: dict[str, str | None] = {}

    def start(self, summary: dict[str, Any], lines: Sequence[str]) -> None:
        """Begin the files."""
        facts = {key: summary[key] for key in FACTS}
        facts |= {"steps": summary["planned_steps"]}
        facts |= {"placement": summary["placement"]["kind"]}
        self._config = {"strategy": self._strategy} | facts | self._more
        now = datetime.datetime.now().astimezone()
        self._started = now.isoformat(timespec="seconds")
        self._versions = results.versions()
        self.begin(self._config)
        # Of many runs of a script: which.
        self._observer.start(summary, (f"{self._strategy} in {self._folder}:", *lines))

    def end(self, run: Run | None) -> None:
        """Write the result; one that failed has none, and counts as interrupted."""
        try:
            with contextlib.closing(self):
                if run is not None and cluster.is_first():
                    results.finish(self._folder, self._result(run))
        finally:
            self._observer.end(run)

    def _result(self, run: Run) -> dict[str, Any]:
        return measured(run) | {
            "status": run.status,
            "reason": run.reason,
            "config": self._config,
            "overrides": [],
            "started": self._started,
            "versions": self._versions,
        }


def measured(run: Run) -> dict[str, Any]:
    """What a result says of a run that came to its end."""
    scored = [r for r in run.history if r.get("test_accuracy") is not None]
    return {
        "summary": run.summary,
        "final": run.history[-1],
        "best": max(scored, key=lambda r: r["test_accuracy"], default=None),
        "machine": results.machine(jax.devices()),
    }


def _checked(config: Any) -> dict[str, Any]:
    """The config as it is stored.

    Raises:
        UserError: Names the key that cannot be.
    """
    if not isinstance(config, Mapping):
        raise UserError(
            f"config={config!r}: give a dict that tells the run from others, such as "
            '{"learning_rate": 0.1}'
        )
    out = {}
    for key, value in config.items():
        if key in RESERVED:
            raise UserError(
                f"config has {key!r}, which a Recorder fills in or the files of a run "
                f"keep apart: choose another name, such as 'my_{key}'"
            )
        if key == "target_accuracy" and value is not None:
            check_accuracy(key, value)
        try:
            out[str(key)] = plain(value, words=True)
        except TypeError as error:
            raise UserError(
                f"config[{key!r}]: {error}: give its name instead"
            ) from error
    return out
