"""A run that goes on ends where the undisturbed one ends; other numbers of workers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from resumes import (
    assert_same_history,
    assert_same_state,
    fit,
    share_engines,
    stored,
)
from tiny import tiny
from zoo import MORE_ROWS, ZOO

import parsgd
from parsgd import train
from parsgd.checkpoint.keeper import keeping
from parsgd.core import phases
from parsgd.data.order import Order
from parsgd.training.segments import phase_at

# Other rows have the same state, or less of it, and only compute otherwise.
SAME = ("sync_sgd hierarchical", "sync_sgd ring", "sync_sgd tree", "zero-one adam")
SAME += ("local_sgd reset", "block_momentum cntk", "block_momentum fairseq")
ROWS = {name: row for name, row in (ZOO | MORE_ROWS).items() if name not in SAME}


def as_many(folder, to, algorithm, workers):
    """Restore into another number of workers and save that, without a step."""
    order = Order(examples=96, workers=workers, worker_batch=3)
    engine = train.Engine(tiny(), phases(algorithm), order=order)
    with keeping(parsgd.Checkpoints(folder)) as keeper:
        found = keeper.restore(engine, jax.random.key(0))
        lines = keeper.lines
    with keeping(parsgd.Checkpoints(to)) as keeper:
        keeper.look(found.meta["facts"] | {"workers": workers})
        keeper.save(found.state, engine, found.meta)
    phase = phase_at(engine.worker.phases, found.meta["step"])
    return engine.readout(found.state, phase)[0], lines


def averages(folder):
    """Every array averaged over the workers; the owners' stripes side by side."""
    meta, arrays = stored(folder)
    out = {}
    for name, (_, dtype, shared, key) in meta["leaves"].items():
        x = arrays.get(name)
        if x is None:
            continue
        if "owner_error" in name:
            whole = x if shared else np.concatenate([*x], -1)
            out[name] = np.abs(whole).sum()
        elif shared or key or not jnp.issubdtype(dtype, jnp.floating):
            out[name] = x
        else:
            out[name] = x.mean(0, np.float64)
    return meta, out


@pytest.mark.parametrize("name", ROWS)
def test_C4_E4_H3_H5_H7_runs_go_on_bit_for_bit_and_resized(name, tmp_path, monkeypatch):
    share_engines(monkeypatch)
    row = ROWS[name]
    make = lambda: row.make(optax.sgd(0.1, 0.9))
    own = all(phase.local_steps for phase in phases(make()))
    steps = 1 if own else row.local_steps
    options = {"local_steps": steps, "workers": 8, "worker_batch": 3}
    at_end = {"algorithm": make(), "every": 100}
    whole = fit(tmp_path / "a", samples=24 * 12, **at_end, **options)
    for at in (2, 3):
        fit(tmp_path / "8", algorithm=make(), samples=24 * 12, at=at, **options)
    run = fit(tmp_path / "8", samples=24 * 12, **at_end, **options)
    assert_same_state(tmp_path / "a", tmp_path / "8")
    assert_same_history(whole.history, run.history)
    assert_equal(whole.readout, run.readout)

    _, before = averages(tmp_path / "8")
    for old, new in itertools.pairwise((8, 4, 1, 2)):
        folders = tmp_path / f"{old}", tmp_path / f"{new}"
        readout, lines = as_many(*folders, make(), new)
        # A mean of workers that differ is rounded, each placement in its order.
        assert_equal(readout, whole.readout, exact=row.shared)
        assert any(f"{old} -> {new} workers: kept" in line for line in lines)
        meta, after = averages(tmp_path / f"{new}")
        assert (meta["workers"], meta["step"]) == (new, 12)
        assert before.keys() == after.keys()
        for leaf, x in before.items():
            np.testing.assert_allclose(after[leaf], x, rtol=2e-6, atol=1e-8)
    last = fit(tmp_path / "2", samples=324, **at_end, **options | {"workers": 2})
    assert last.history[-1]["step"] == 12 + 6
    assert last.history[-1]["samples"] == 324
    assert_same_history(last.history[: len(run.history)], run.history)


def assert_equal(tree, other, exact=True):
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        if exact:
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)
