"""One process of several: runs algorithms of the zoo, and process 0 keeps their ends.

Started by test_cluster_runs.py, as `parsgd launch` starts a script of a user's own;
its arguments: where to write, the devices of each process, and the names, if not all.
"""

import os
import sys

import jax
import numpy as np
import optax
from tiny import tiny
from zoo import MORE_ROWS, ZOO

import parsgd
from parsgd import cluster


def run(name: str) -> dict[str, np.ndarray]:
    """Where a short run of four workers ends."""
    row = (ZOO | MORE_ROWS)[name]
    done = parsgd.fit(
        tiny(),
        row.make(optax.sgd(0.1, 0.9)),
        workers=4,
        local_steps=row.local_steps,
        worker_batch=2,
        samples=72,
        evaluations=1,
        placement="shard_map",
        devices=int(sys.argv[2]),
    )
    leaves = jax.tree.leaves_with_path(done.readout)
    out = {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}
    return out | {"loss": np.float64(done.history[-1]["batch_loss"])}


def main() -> None:
    jax.config.update("jax_num_cpu_devices", int(sys.argv[2]))
    jax.config.update("jax_disable_most_optimizations", True)
    cluster.start(cluster.Settings())
    if cluster.processes() > 1 and hasattr(os, "SCHED_BATCH"):
        # Without it gloo's threads wait for each other until the scheduler's next tick.
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
    names = sys.argv[3:] or [name for name in ZOO if name != "single"]
    ends = {f"{name} {k}": v for name in names for k, v in run(name).items()}
    if cluster.is_first():
        np.savez(sys.argv[1], **ends)
    cluster.leave(0)


if __name__ == "__main__":
    main()
