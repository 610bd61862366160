"""What dispatching, counting, showing and logging cost a run beside its computation.

Whole runs as the command does them, with a progress bar and a job's files, of about
``--seconds`` each and ten evaluations. Of the time after the first dispatch,
evaluations and the devices' own time are taken away; what is left is shown as a share
of the devices' time. Runs of the cells take turns.

    python -m benchmarks.overhead
"""

import argparse
import io
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

import parsgd
from benchmarks import ours
from benchmarks.candidates import BATCH, LOCAL_STEPS, LR, Cell
from parsgd.cli.job import JobRecorder
from parsgd.progress import Progress

CELLS = tuple(
    Cell(algorithm, model, 4)
    for algorithm in ("sync", "local")
    for model in ("mlp_258k", "mlp_6_9m", "cnn")
)
EVALUATIONS = 10


class Clock(JobRecorder):
    """A job's recorder that takes the time of what the loop does between dispatches."""

    def __init__(self, folder: Path, display: Progress):
        super().__init__(folder, display, ())
        self.seconds = self.trained = 0.0  # evaluations apart
        self._before = 0.0  # when the last of these calls ended
        self._trained = 0.0

    def progress(self, step, steps, record):
        """After a dispatch."""
        super().progress(step, steps, record)
        now = time.perf_counter()
        if self._before:  # else it has compiled
            self.seconds += now - self._before
            self.trained += record["seconds"] - self._trained
        self._before, self._trained = now, record["seconds"]

    def record(self, record):
        """After an evaluation."""
        start = time.perf_counter()  # until now it has evaluated
        super().record(record)
        now = time.perf_counter()
        if self._before:
            self.seconds += now - start
            self._before = now


class Shares(NamedTuple):
    """Of one run: seconds on the devices, and what came beside them."""

    trained: float
    beside: float


def run(task: parsgd.Task, cell: Cell, rounds: int) -> Shares:
    """Train once."""
    import optax

    make = parsgd.sync_sgd if cell.algorithm == "sync" else parsgd.local_sgd
    console = Console(file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(Path(folder), Progress(console))
        parsgd.fit(
            task,
            make(optax.sgd(LR)),
            workers=cell.workers,
            worker_batch=BATCH,
            local_steps=1 if cell.algorithm == "sync" else LOCAL_STEPS,
            rounds=rounds,
            evaluations=EVALUATIONS,
            observer=clock,
        )
    return Shares(clock.trained, clock.seconds - clock.trained)


def main() -> None:
    """Print a line for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="runs of each cell")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a run, about")
    given = parser.parse_args()
    rounds, found = {}, {cell: [] for cell in CELLS}
    tasks = {cell: ours.task(cell) for cell in CELLS}
    for cell in CELLS:
        probe = run(tasks[cell], cell, 200)
        rounds[cell] = max(EVALUATIONS, round(200 * given.seconds / probe.trained))
    for _ in range(given.repeats):
        for cell in CELLS:
            found[cell].append(run(tasks[cell], cell, rounds[cell]))
    for cell, runs in found.items():
        shares = sorted(one.beside / one.trained for one in runs)
        print(
            f"{cell.name}: {statistics.median(one.trained for one in runs):.2f} s on "
            f"the devices, beside it {statistics.median(shares):.2%} "
            f"({shares[0]:.2%} to {shares[-1]:.2%}), {EVALUATIONS} evaluations, "
            f"n={given.repeats}",
            flush=True,
        )


if __name__ == "__main__":
    main()
