"""Which GPUs are a process's own, as its environment tells before the backend starts.

Of processes that Slurm or Open MPI started JAX gives each one GPU: that of its number
on the machine. That is right where all of them see the same GPUs and there are as many.
It is none at all where each sees only its own, and one of several where there are fewer
processes than GPUs.
"""

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
ASKED = "JAX_LOCAL_DEVICE_IDS"  # by the user, and read by JAX itself
DEVICES = Path("/dev")
ORTE = "OMPI_MCA_orte_hnp_uri"  # by which JAX knows that Open MPI started a process


def visible(env: Mapping[str, str]) -> list[str]:
    """CUDA's names of the GPUs that a process in this environment sees.

    Example:
        >>> visible({"CUDA_VISIBLE_DEVICES": "4,5"}), visible({VISIBLE: "-1"})
        (['4', '5'], [])
    """
    if VISIBLE in env:
        names = [name.strip() for name in env[VISIBLE].split(",")]
        return [*takewhile(lambda name: name and name[0] != "-", names)]
    # By CUDA's numbers: where a container shows /dev/nvidia3 alone, that is GPU 0.
    return [str(i) for i, _ in enumerate(DEVICES.glob("nvidia[0-9]*"))]


def arguments(env: Mapping[str, str]) -> dict[str, Any]:
    """``local_device_ids`` of ``jax.distributed.initialize``; none where JAX decides.

    With V GPUs that this process sees, being number r of the L on its machine:

    - V = 1 (by a list of its own, where L > 1), or V GPUs for each task of Slurm: all
      that it sees, which is its own.
    - V >= L: they see the same GPUs, and the share of this one is the V // L from
      r (V // L) on. That holds for one process, too: it has all.
    - otherwise, and where the user says so by `ASKED`, what JAX does.
    """
    place, seen = _place(env), len(visible(env))
    if place is None or not seen or ASKED in env:
        return {}
    number, count, own = place
    if VISIBLE not in env and count > seen:
        return {}
    if seen in (1, own):
        return {"local_device_ids": [*range(seen)]}
    if not 0 < count <= seen:
        return {}
    each = seen // count
    return {"local_device_ids": [*range(number * each, (number + 1) * each)]}


def _place(env: Mapping[str, str]) -> tuple[int, int, int] | None:
    """This process's number on its machine, of how many, and its own number of GPUs.

    The last two are 0 where the launcher does not tell. None without one that JAX takes
    such a number from.
    """
    try:
        if ORTE in env:
            rank = int(env["OMPI_COMM_WORLD_LOCAL_RANK"])
            return rank, int(env.get("OMPI_COMM_WORLD_LOCAL_SIZE", 0)), 0
        tasks = _tasks(env.get("SLURM_STEP_TASKS_PER_NODE", ""))
        node = int(env.get("SLURM_NODEID", 0))
        # As in 2 or a100:2. A task that sees as many was bound to them.
        own = env.get("SLURM_GPUS_PER_TASK", "0").rpartition(":")[2]
        count = tasks[node] if node < len(tasks) else 0
        return int(env["SLURM_LOCALID"]), count, int(own)
    except (KeyError, ValueError):
        return None


def _tasks(text: str) -> list[int]:
    """How many tasks each machine of a step has.

    Example:
        >>> _tasks("2(x2),1")
        [2, 2, 1]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in found for _ in range(int(times or 1))]


def dealt(env: Mapping[str, str], processes: int) -> list[dict[str, str]]:
    """What gives each process of one machine as many of its GPUs, in their order.

    Nothing where there are fewer GPUs than processes.

    Example:
        >>> [own[VISIBLE] for own in dealt({VISIBLE: "0,1,4,5"}, 2)]
        ['0,1', '4,5']
    """
    names = visible(env)
    each = len(names) // processes
    if not each:
        return [{} for _ in range(processes)]
    starts = range(0, processes * each, each)
    return [{VISIBLE: ",".join(names[start : start + each])} for start in starts]
