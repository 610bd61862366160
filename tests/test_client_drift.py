"""Local steps on data that differs: where they end, in closed form.

Worker w keeps one class, so its loss is a quadratic of its own, with Hessian A_w and
minimum b_w. H steps of rate a on all of its shard take it from x to
``b_w + (I - a A_w)^H (x - b_w)``, so what the workers' average, or any outer optimizer
on it, comes to rest at solves ``sum_w (I - (I - a A_w)^H) (x - b_w) = 0``. For H = 1
that is the minimum of the mean loss; for more it is not.
"""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parsgd
from parsgd.data.dataset import Dataset, Split, as_floats
from parsgd.tasks import Task

WORKERS, EACH, RATE = 3, 8, 0.1


def data():
    """Classes of different slopes, seen from different directions."""
    rng = np.random.default_rng(0)
    labels = np.arange(WORKERS * EACH) % WORKERS
    scales = np.array([[1, 0.3], [0.5, 1], [1.2, 1]])
    x = rng.normal(size=(len(labels), 2)) * scales[labels]
    y = np.sum(x * rng.normal(size=(WORKERS, 2))[labels], -1)
    return np.column_stack([x, y]).astype(np.float32), labels.astype(np.int32)


def regression():
    """Half of the mean squared error of a line without offset."""
    split = Split(*data())

    def losses(params, batch):
        return jnp.square(batch.x[:, :2] @ params["w"] - batch.x[:, 2]) / 2

    return Task(
        "regression",
        Dataset("regression", split, split, WORKERS, as_floats),
        lambda key: ({"w": jnp.zeros(2)}, {}),
        lambda params, model, batch, key: (jnp.mean(losses(params, batch)), model),
        lambda params, model, batch: {"loss": losses(params, batch)},
    )


def rest(h):
    """The solution for H local steps."""
    rows, labels = data()
    left, right = np.zeros((2, 2)), np.zeros(2)
    for label in range(WORKERS):
        x, y = np.split(rows[labels == label].astype(np.float64), [2], 1)
        hessian = x.T @ x / EACH
        b = np.linalg.solve(hessian, x.T @ y / EACH)[:, 0]
        moved = np.eye(2) - np.linalg.matrix_power(np.eye(2) - RATE * hessian, h)
        left, right = left + moved, right + moved @ b
    return np.linalg.solve(left, right)


def minimum():
    rows = data()[0].astype(np.float64)
    return np.linalg.lstsq(rows[:, :2], rows[:, 2])[0]


def trained(algorithm, h):
    run = parsgd.fit(
        regression(), algorithm, workers=WORKERS, worker_batch=EACH, local_steps=h,
        rounds=600 // h, evaluations=1, shards="fixed", label_skew=1.0,
    )  # fmt: skip
    return run.readout["w"]


LOCAL = {
    "local_sgd": parsgd.local_sgd,
    "diloco": parsgd.diloco,
    "block_momentum": parsgd.block_momentum,
}


@pytest.mark.parametrize("h", [1, 2, 8])
@pytest.mark.parametrize("name", LOCAL)
def test_local_steps_end_at_their_fixed_point(name, h):
    x = trained(LOCAL[name](optax.sgd(RATE)), h)
    np.testing.assert_allclose(x, rest(h), atol=1e-5)


def test_only_one_local_step_ends_at_the_minimum_of_the_mean_loss():
    sync = trained(parsgd.sync_sgd(optax.sgd(RATE)), 1)
    np.testing.assert_allclose(sync, minimum(), atol=1e-5)
    one, *more = (np.linalg.norm(rest(h) - minimum()) for h in (1, 2, 8, 64))
    assert one < 1e-6 and 0.01 < more[0] < more[1] < more[2]
