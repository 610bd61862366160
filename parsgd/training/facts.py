"""What a run must have in common with the one that it goes on from."""

from collections.abc import Sequence
from typing import Any

from parsgd import cluster
from parsgd.core import Phase
from parsgd.data.checksum import data_checksum
from parsgd.tasks import Task
from parsgd.training.plan import Plan

# The facts that the summary has too, beside what the meter tells.
TOLD = (
    "task",
    "data_checksum",
    "seed",
    "tail",
    "shards",
    "label_skew",
    "micro_batches",
)


def facts_of(
    task: Task, plan: Plan, phases: Sequence[Phase], micro_batches: int
) -> dict[str, Any]:
    """The facts of a run, as JSON can hold them.

    Args:
        task: The task.
        plan: The work.
        phases: The algorithm's phases.
        micro_batches: Parts that each worker's batch is split into.
    """
    order = plan.order
    with cluster.busy():
        data_sum = data_checksum(task.data)
    return {
        "task": task.name,
        "examples": order.examples,
        "data_checksum": data_sum,
        "workers": order.workers,
        "worker_batch": order.worker_batch,
        "local_steps": plan.local_steps,
        "seed": order.seed,
        "tail": order.tail,
        "shards": order.shards,
        "label_skew": order.label_skew,
        "micro_batches": micro_batches,
        "phases": [[phase.start, phase.local_steps] for phase in phases],
    }
