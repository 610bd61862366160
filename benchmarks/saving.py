"""What saving costs the training: the same run with and without checkpoints.

The MLP with exactly 6.9M parameters, momentum SGD, two workers: synchronous, where the
state is stored once, and local SGD. Runs with and without checkpoints take turns, and
so does which of them comes first. Each is timed from its first dispatch to its last, so
that what is written in the background counts as far as it slows the training. A save
costs ``(with - without) / saves``.

    python -m benchmarks.saving
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

import optax

import parsgd
from parsgd.core import Algorithm

EVERY_SECONDS = 30  # the cost is shown as a share of this
ALGORITHMS: dict[str, tuple[Callable[..., Algorithm], int]] = {
    "sync_sgd": (parsgd.sync_sgd, 1),
    "local_sgd": (parsgd.local_sgd, 8),
}


class Clock(parsgd.Observer):
    """When the dispatches ended."""

    def __init__(self):
        self.ends: list[float] = []

    def progress(self, step, steps, record):
        """After a dispatch."""
        self.ends.append(time.perf_counter())


def timed(task: parsgd.Task, name: str, steps: int, saves: int) -> float:
    """Seconds of one run after its first dispatch; another save falls on its end."""
    clock, (make, local_steps) = Clock(), ALGORITHMS[name]
    rounds = steps // local_steps
    with tempfile.TemporaryDirectory() as folder:
        every = rounds // (saves + 1)
        checkpoints = parsgd.Checkpoints(folder, every_rounds=every) if saves else None
        parsgd.fit(
            task,
            make(optax.sgd(0.01, 0.9)),
            workers=2,
            local_steps=local_steps,
            worker_batch=32,
            rounds=rounds,
            evaluations=1,
            train_examples=32,
            observer=clock,
            checkpoints=checkpoints,
        )
    return clock.ends[-1] - clock.ends[0]


def measured(
    run: Callable[[int], float], repeats: int, saves: int
) -> list[tuple[float, float]]:
    """Seconds with saves and without, of pairs whose first is now one, now the other.

    Args:
        run: The seconds of a run with a number of saves.
        repeats: How many pairs.
        saves: Of a run that saves.
    """
    pairs = []
    for number in range(repeats):
        took = {}
        for count in (0, saves) if number % 2 == 0 else (saves, 0):
            took[count] = run(count)
        pairs.append((took[saves], took[0]))
    return pairs


def main() -> None:
    """Print a line for each algorithm."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs")
    parser.add_argument("--steps", type=int, default=960, help="of a run")
    parser.add_argument("--saves", type=int, default=3, help="of a run")
    given = parser.parse_args()
    # 4,800 inputs and 3 classes are those of the study that the count is from.
    model, sizes = parsgd.models.mlp_6_9m(), {"features": 4_800, "classes": 3}
    task = parsgd.synthetic(model, examples=2_000, test_examples=64, **sizes)
    for name in ALGORITHMS:
        run = partial(timed, task, name, given.steps)
        pairs = measured(run, given.repeats, given.saves)
        costs = sorted((a - b) / given.saves for a, b in pairs)
        cost = statistics.median(costs)
        print(
            f"{name}: {statistics.median(b for _, b in pairs):.2f} s without, "
            f"{statistics.median(a for a, _ in pairs):.2f} s with {given.saves} saves; "
            f"{cost:.3f} s a save ({costs[0]:.3f} to {costs[-1]:.3f}), "
            f"{cost / EVERY_SECONDS:.2%} of {EVERY_SECONDS} s, n={given.repeats}",
            flush=True,
        )


if __name__ == "__main__":
    main()
