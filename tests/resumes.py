"""Runs that are broken off and go on, for tests of checkpoints."""

from pathlib import Path

import jax
import numpy as np
import optax
from tiny import tiny

import parsgd
from parsgd import train
from parsgd.checkpoint.quiet import quiet
from parsgd.checkpoint.store import Store
from parsgd.training.engine import Engine


class Broken(Exception):
    """What a run dies of here."""


class Watcher(parsgd.Observer):
    """Breaks a run off after a round; keeps what it is told."""

    def __init__(self, at=None):
        self.at, self.lines, self.before = at, [], []

    def start(self, summary, lines):
        self.lines = list(lines)

    def resumed(self, history):
        self.before = history

    def progress(self, step, steps, record):
        if self.at is not None and record["round"] >= self.at:
            raise Broken


def share_engines(monkeypatch):
    """Runs of one test and shape share their compiled programs."""
    made = {}

    def engine(*args, order, **options):
        if order not in made:
            made[order] = Engine(*args, order=order, **options)
        return made[order]

    monkeypatch.setattr(train, "Engine", engine)


def fit(folder, *, algorithm=None, at=None, watcher=None, every=1, **options):
    """A small run that saves; None if it was broken off after round ``at``."""
    algorithm = algorithm or parsgd.local_sgd(optax.sgd(0.1, 0.9))
    kept = {k: options.pop(k) for k in SETTINGS if k in options}
    sizes = {"workers": 3, "local_steps": 3, "worker_batch": 4, "rounds": 6}
    if {"samples", "epochs"} & options.keys():
        del sizes["rounds"]
    if "global_batch" in options:
        del sizes["worker_batch"]
    sizes |= {"evaluations": 3}
    task = options.pop("task", None) or tiny()
    saves = parsgd.Checkpoints(folder, every_rounds=every, **kept)
    try:
        return parsgd.fit(
            task,
            algorithm,
            checkpoints=saves,
            observer=watcher or Watcher(at),
            **sizes | options,
        )
    except Broken:
        return None


SETTINGS = ("keep_last", "keep_best", "step", "force", "config", "every_minutes")


def stored(folder, step=None):
    """What the newest checkpoint holds: ``(meta, arrays)``."""
    with quiet():
        store = Store(Path(folder))
        step = store.steps()[0] if step is None else step
        meta = store.meta(step)
        wanted = {
            name: jax.ShapeDtypeStruct(shape, np.dtype(dtype))
            for name, (shape, dtype, *_) in meta["leaves"].items()
            if np.prod(shape)
        }
        arrays = store.arrays(step, wanted)
        store.close()
    return meta, {name: np.asarray(x) for name, x in arrays.items()}


def steps_in(folder):
    """Names of the checkpoints in a folder, in order."""
    return sorted(int(p.name) for p in Path(folder).iterdir() if p.name.isdigit())


def assert_same_state(folder, other):
    """The newest checkpoints of two folders hold the same, bit for bit."""
    (meta, arrays), (meta2, arrays2) = stored(folder), stored(other)
    assert meta["leaves"] == meta2["leaves"]
    assert (meta["step"], meta["round"]) == (meta2["step"], meta2["round"])
    for name, x in arrays.items():
        assert x.tobytes() == arrays2[name].tobytes(), name


def assert_same_history(history, other):
    """Equal records, but for the time they took."""
    assert len(history) == len(other)
    for a, b in zip(history, other, strict=True):
        for key in a:
            if key != "seconds":
                np.testing.assert_equal(a[key], b[key], err_msg=key)
