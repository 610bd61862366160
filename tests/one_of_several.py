"""One process of several: runs algorithms of the zoo, and process 0 keeps their ends.

Started by test_cluster_runs.py, as `parsgd launch` starts a script of a user's own;
its arguments: where to write, the devices of each process, and the names; all others
follow after the word "others".

What takes time is to trace and compile. So algorithms of one kind run side by side in
one program, each on a model of its own.
"""

import os
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tiny import tiny
from zoo import MORE_ROWS, ZOO

import parsgd
from parsgd import cluster
from parsgd.core import phases
from parsgd.tasks import Task

ROWS = ZOO | MORE_ROWS


def kinds(names: list[str]) -> list[dict[str, tuple]]:
    """Phases of these algorithms; those of one dict can run side by side."""
    found: dict = {}
    for name in names:
        stages = phases(ROWS[name].make(optax.sgd(0.1, 0.9)))
        own = any(stage.local_steps for stage in stages)
        mean = stages[0].strategy.mean_gradient
        kind = name if own else (len(stages) > 1, mean)
        found.setdefault(kind, {})[name] = stages
    return [*found.values()]


def side_by_side(methods: dict[str, tuple]) -> tuple[parsgd.Phase, ...]:
    """All methods as one, whose parameters are a dict with those of each."""
    starts = {stage.start: stage.local_steps for s in methods.values() for stage in s}

    def at(start: int) -> parsgd.Strategy:
        now = {
            name: next(s.strategy for s in reversed(stages) if s.start <= start)
            for name, stages in methods.items()
        }

        def each(step: str) -> Callable:
            def both(*trees):
                done = {k: getattr(now[k], step)(*(t[k] for t in trees)) for k in now}
                return {k: v[0] for k, v in done.items()}, {
                    k: v[1] for k, v in done.items()
                }

            return both

        return parsgd.Strategy(
            lambda params: {k: now[k].init(params[k]) for k in now},
            each("local"),
            each("sync"),
            lambda params, state: {k: now[k].readout(params[k], state[k]) for k in now},
            mean_gradient=all(method.mean_gradient for method in now.values()),
        )

    return tuple(parsgd.Phase(s, at(s), starts[s]) for s in sorted(starts))


def copies(names: list[str]) -> Task:
    """The tiny task with a model for each name, all trained on the same batches."""
    task = tiny()

    def each(fn: Callable, params: dict, model: dict, batch) -> jax.Array:
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *(params[k] for k in names))
        return jax.vmap(lambda p: fn(p, model, batch))(stacked)

    def init(key):
        return {name: task.init(key)[0] for name in names}, {}

    def loss(params, model, batch, key):
        found = each(lambda p, m, b: task.loss(p, m, b, key)[0], params, model, batch)
        return jnp.sum(found), model  # so that each has its own gradient

    def metrics(params, model, batch):
        return jax.tree.map(
            lambda x: x.mean(0), each(task.metrics, params, model, batch)
        )

    return task._replace(init=init, loss=loss, metrics=metrics)


def run(methods: dict[str, tuple]) -> dict[str, np.ndarray]:
    """Where a short run of four workers ends."""
    done = parsgd.fit(
        copies([*methods]),
        side_by_side(methods),
        workers=4,
        local_steps=1 if any(s[0].local_steps for s in methods.values()) else 3,
        worker_batch=2,
        samples=72,
        evaluations=1,
        placement="shard_map",
        devices=int(sys.argv[2]),
    )
    leaves = jax.tree.leaves_with_path(done.readout)
    out = {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}
    return out | {f"loss of {[*methods]}": np.float64(done.history[-1]["batch_loss"])}


def main() -> None:
    jax.config.update("jax_num_cpu_devices", int(sys.argv[2]))
    jax.config.update("jax_disable_most_optimizations", True)
    cluster.start(cluster.Settings())
    if cluster.processes() > 1 and hasattr(os, "SCHED_BATCH"):
        # Without it gloo's threads wait for each other until the scheduler's next tick.
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
    names = [name for name in sys.argv[3:] if name != "others"]
    parts = [names]
    if "others" in sys.argv:
        parts.append([name for name in ROWS if name not in names])
    ends: dict = {}
    for methods in (methods for part in parts for methods in kinds(part)):
        ends |= run(methods)
    if cluster.is_first():
        np.savez(sys.argv[1], **ends)
    cluster.leave(0)


if __name__ == "__main__":
    main()
