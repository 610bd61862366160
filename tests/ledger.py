"""A task whose end tells which example was used in which step.

Step t moves the parameter of each example of its global batch by 2^t, exactly: the
bits of the parameters are the order of the examples.
"""

import jax.numpy as jnp
import numpy as np
import optax

import parsgd
from parsgd.data import Order
from parsgd.data.dataset import Dataset, Split, as_floats
from parsgd.tasks import Task

EXAMPLES, WORKERS, BATCH, STEPS = 27, 4, 2, 12  # 3 of them sit out each epoch


def _losses(params, batch):
    return params["w"][batch.x.astype(jnp.int32)]


def _task():
    x = np.arange(EXAMPLES)
    split = Split(x.astype(np.float32), np.zeros(EXAMPLES, np.int32))
    return Task(
        "ledger",
        Dataset("ledger", split, split, 2, as_floats),
        lambda key: ({"w": jnp.zeros(EXAMPLES)}, {}),
        lambda params, model, batch, key: (jnp.mean(_losses(params, batch)), model),
        lambda params, model, batch: {"loss": _losses(params, batch)},
    )


def recorded(method, **options):
    """How often each step used each example, ``[STEPS, EXAMPLES]``."""
    rate = lambda t: WORKERS * BATCH * 2.0**t
    run = parsgd.fit(
        _task(), method(optax.sgd(rate)), workers=WORKERS, worker_batch=BATCH,
        rounds=STEPS, evaluations=1, **options,
    )  # fmt: skip
    return bits(run.readout["w"])


def bits(w):
    """Of one parameter for each example; more than one use would be a carry."""
    return -np.asarray(w).astype(int) >> np.arange(STEPS)[:, None] & 1


def ordered(**options):
    """What one worker with the whole batch, or these shards, would use."""
    sizes = {"workers": 1, "worker_batch": WORKERS * BATCH} | options
    index, _ = Order(examples=EXAMPLES, **sizes).indices(0, STEPS)
    used = np.zeros((STEPS, EXAMPLES), int)
    np.add.at(used, (np.arange(STEPS)[:, None], index.reshape(STEPS, -1)), 1)
    return used
