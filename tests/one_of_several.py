"""One process of several: runs algorithms of the zoo, and process 0 keeps their ends.

Started by test_cluster_runs.py, as `parsgd launch` starts a script of a user's own;
its arguments: where to write, the devices of each process, and the names.
"""

import os
import sys

import jax
import ledger
import numpy as np
import optax
from tiny import tiny
from zoo import MORE_ROWS, ZOO

import parsgd
from parsgd import cluster
from parsgd.core import phases
from parsgd.training import turns

FIXED = " of fixed shards"
IN_TURN = ", lanes in turn"
LEDGER = "examples used"


class Said(parsgd.Observer):
    """Keeps what is said at the start."""

    def start(self, summary, lines):
        self.lines = lines


def run(name: str) -> dict[str, np.ndarray]:
    """Where a short run of four workers ends, or of eight that share devices."""
    if name == LEDGER:
        options = {"placement": "shard_map", "devices": int(sys.argv[2])}
        return {"steps": ledger.recorded(parsgd.sync_sgd, **options)}
    more = {"shards": "fixed", "label_skew": 0.5} if name.endswith(FIXED) else {}
    in_turn = name.endswith(IN_TURN)
    if in_turn:
        turns.LANE_BYTES = turns.LANE_BYTES_OF_SEVERAL_CORES = 0  # of lanes alone
    name = name.removesuffix(FIXED).removesuffix(IN_TURN)
    row = (ZOO | MORE_ROWS)[name]
    algorithm = row.make(optax.sgd(0.1, 0.9))
    own = any(phase.local_steps for phase in phases(algorithm))
    said = Said()
    done = parsgd.fit(
        tiny(94),
        algorithm,
        workers=8 if in_turn else 4,
        local_steps=1 if own else row.local_steps,
        worker_batch=2,
        samples=72,
        evaluations=1,
        placement="shard_map",
        devices=int(sys.argv[2]),
        tail="weight",
        observer=said,
        **more,
    )
    assert in_turn == any("lanes one after the other" in line for line in said.lines)
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
    ends = {f"{name} {k}": v for name in sys.argv[3:] for k, v in run(name).items()}
    if cluster.is_first():
        np.savez(sys.argv[1], **ends)
    cluster.leave(0)


if __name__ == "__main__":
    main()
