"""One process of several, of which the first is slow to make a checkpoint final.

Its arguments: where to write, which is also where each process tells what it finds.
"""

import json
import os
import sys
import time
from pathlib import Path

import jax
import optax
from tiny import tiny

import parsgd
from parsgd import cluster


def slowly(rename):
    """``os.rename`` that waits before a checkpoint gets its name, a number."""

    def renamed(source, target, **options):
        if Path(target).name.isdigit():
            time.sleep(2)
        return rename(source, target, **options)

    return renamed


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 1)
    cluster.start(cluster.Settings())
    folder, found = Path(sys.argv[1]), []
    if cluster.is_first():
        os.rename = slowly(os.rename)
    for rounds in (2, 4):
        run = parsgd.fit(
            tiny(), parsgd.local_sgd(optax.sgd(0.1)), workers=2, worker_batch=2,
            rounds=rounds, evaluations=1, devices=1, placement="shard_map",
            checkpoints=parsgd.Checkpoints(folder / "saved", every_rounds=2),
        )  # fmt: skip
        saved = [p.name for p in (folder / "saved").iterdir() if p.name.isdigit()]
        found.append([max(map(int, saved), default=0), len(run.history)])
    (folder / f"{cluster.process()}.json").write_text(json.dumps(found))
    cluster.leave(0)


if __name__ == "__main__":
    main()
