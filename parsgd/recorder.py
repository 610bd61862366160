"""What a run of a script leaves on disk, for ``parsgd report``."""

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from parsgd import cluster, results
from parsgd.training.meter import Record
from parsgd.training.observer import Observer
from parsgd.training.run import Run

SIZES = ("task", "seed", "workers", "local_steps", "worker_batch", "global_batch")


class Recorder(Observer):
    """Keeps a run in the files of a job, as ``parsgd train`` does.

    ``parsgd report FOLDER`` then makes table, figures and page of all runs below a
    folder, however they were started. Runs whose config differs in ``seed`` only are
    one row, with a mean and an error.

    Args:
        folder: The run's own; what an earlier run left there is replaced.
        strategy: How tables call the algorithm.
        config: What else tells this run from others, such as ``{"pull": 0.5}``: plain
            numbers, words, lists and dicts. Sizes, task and seed are filled in.
        observer: Is told too, such as a `parsgd.Progress`.

    Raises:
        UserError: When the run starts: the folder cannot be written, or another run
            holds it.

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
        self._folder, self._strategy = Path(folder), strategy
        self._more, self._also = dict(config or {}), observer or Observer()
        self._config: dict[str, Any] = {}
        self._started = ""
        self._held = contextlib.ExitStack()

    def start(self, summary: dict[str, Any], lines: Sequence[str]) -> None:
        """Begin the files."""
        sizes = {key: summary[key] for key in SIZES}
        self._config = {"strategy": self._strategy} | sizes | self._more
        now = datetime.datetime.now().astimezone()
        self._started = now.isoformat(timespec="seconds")
        if cluster.is_first():
            self._held.enter_context(results.held(self._folder))
            results.begin(self._folder, self._config)
        self._also.start(summary, lines)

    def resumed(self, history: Sequence[Record]) -> None:
        """Write the records of the run that this one goes on from."""
        for record in history if cluster.is_first() else ():
            results.append(self._folder, record)
        self._also.resumed(history)

    def progress(self, step: int, steps: int, record: Record) -> None:
        """Tell the other observer."""
        self._also.progress(step, steps, record)

    def record(self, record: Record) -> None:
        """Add an evaluation."""
        if cluster.is_first():
            results.append(self._folder, record)
        self._also.record(record)

    def say(self, text: str) -> None:
        """Tell the other observer."""
        self._also.say(text)

    def end(self, run: Run | None) -> None:
        """Write the result; one that failed has none, and counts as interrupted."""
        with self._held:
            if run is not None and cluster.is_first():
                results.finish(self._folder, self._result(run))
        self._also.end(run)

    def _result(self, run: Run) -> dict[str, Any]:
        scored = [r for r in run.history if r.get("test_accuracy") is not None]
        return {
            "status": run.status,
            "reason": run.reason,
            "config": self._config,
            "overrides": [],
            "started": self._started,
            "summary": run.summary,
            "final": run.history[-1],
            "best": max(scored, key=lambda r: r["test_accuracy"], default=None),
            "versions": results.versions(),
            "machine": results.machine(jax.devices()),
        }
