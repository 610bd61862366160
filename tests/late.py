"""A run of several processes, one of which compiles for longer than the timeout.

Usage: late.py {init,metrics}
"""

import sys
import time

import jax
import optax
from tiny import tiny

import parsgd
from parsgd import cluster

TIMEOUT = 5.0


def late(fn):
    """Slow, as what compiles on another machine may be."""

    def wrapped(*args):
        time.sleep(1.2 * TIMEOUT)
        return fn(*args)

    return wrapped


def slow_jit(slow, jit=jax.jit):
    """`jax.jit` that is late with a function."""

    def wrapped(fn, *args, **options):
        out = jit(fn, *args, **options)
        return late(out) if fn == slow else out

    return wrapped


if __name__ == "__main__":
    where = sys.argv[1]
    jax.config.update("jax_num_cpu_devices", 1)
    cluster.start(cluster.Settings(timeout=TIMEOUT))
    task = tiny()
    if cluster.process() == 1 and where == "init":
        jax.jit = slow_jit(task.init)
    elif cluster.process() == 1:
        task = task._replace(metrics=late(task.metrics))  # when it is traced
    run = parsgd.fit(
        task, parsgd.sync_sgd(optax.sgd(0.1)), workers=2, worker_batch=2, rounds=2,
        evaluations=1,
    )  # fmt: skip
    assert run.status == "completed"
    cluster.leave(0)
