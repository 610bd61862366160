"""Tasks: the loss and its weights, the penalty, metrics, and no backend at import."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from parsgd import tasks
from parsgd.data.dataset import Dataset, Split, as_floats
from parsgd.errors import UserError
from parsgd.models import MLP, LogisticRegression
from parsgd.tasks import Batch

KEY = jax.random.key(0)


def toy(n=12, classes=3, features=4):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, features)).astype(np.float32)
    y = rng.integers(classes, size=n).astype(np.int32)
    y[:classes] = np.arange(classes)
    return Dataset("toy", Split(x, y), Split(x[:5], y[:5]), classes, as_floats)


def numpy_losses(logits, y):
    logits = np.asarray(logits, np.float64)
    log_sum = np.log(np.exp(logits).sum(axis=-1))
    return log_sum - np.take_along_axis(logits, y[..., None], axis=-1)[..., 0]


def random_like(params, scale=1.0):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(9), len(leaves))
    new = [
        scale * jax.random.normal(k, p.shape) for k, p in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, new)


def test_loss_and_metrics_equal_numpy():
    data = toy()
    task = tasks.classification(data, LogisticRegression())
    params = random_like(task.init(KEY)[0])
    w = {k: np.asarray(v) for k, v in params["head"].items()}
    expected = numpy_losses(data.train.x @ w["kernel"] + w["bias"], data.train.y)
    batch = Batch(*data.train)
    loss, state = task.loss(params, {}, batch, KEY)
    assert state == {} and loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, expected.mean(), rtol=1e-5)
    metrics = task.metrics(params, {}, batch)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-4, atol=1e-6)
    hits = (data.train.x @ w["kernel"] + w["bias"]).argmax(1) == data.train.y
    np.testing.assert_array_equal(metrics["accuracy"], hits.astype(np.float32))


def test_A4_weights_give_the_mean_over_the_real_examples():
    data = toy()
    task = tasks.classification(data, LogisticRegression())
    params = random_like(task.init(KEY)[0])
    weight = np.array([2, 2, 0, 0], np.float32)
    padded = Batch(data.train.x[:4], data.train.y[:4], weight)
    real = Batch(data.train.x[:2], data.train.y[:2])
    for fn in (
        lambda p, b: task.loss(p, {}, b, KEY)[0],
        jax.grad(lambda p, b: task.loss(p, {}, b, KEY)[0]),
    ):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
            fn(params, padded),
            fn(params, real),
        )


@pytest.mark.parametrize("size", [1, 3, 12])
def test_A7_penalty_is_independent_of_the_batch_and_counts_once(size):
    data = toy()
    plain = tasks.classification(data, LogisticRegression())
    task = tasks.classification(data, LogisticRegression(), l2=0.1)
    params = random_like(task.init(KEY)[0])
    batch = Batch(data.train.x[:size], data.train.y[:size])
    grad = jax.grad(lambda p: task.loss(p, {}, batch, KEY)[0])(params)
    data_grad = jax.grad(lambda p: plain.loss(p, {}, batch, KEY)[0])(params)
    jax.tree.map(
        lambda g, d, p: np.testing.assert_allclose(
            g - d, 0.1 * p, rtol=1e-4, atol=1e-6
        ),
        grad,
        data_grad,
        params,
    )
    # The mean of the metric is the objective, penalty included.
    np.testing.assert_allclose(
        task.metrics(params, {}, batch)["loss"].mean(),
        task.loss(params, {}, batch, KEY)[0],
        rtol=1e-5,
    )


def test_loss_is_float32_when_the_model_is_not():
    class Half(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, dtype=jnp.bfloat16)(x)

    data = toy()
    task = tasks.classification(data, Half())
    params, state = task.init(KEY)
    assert task.loss(params, state, Batch(*data.train), KEY)[0].dtype == jnp.float32


def test_dropout_follows_the_key_and_is_off_in_evaluation():
    data = toy()
    task = tasks.classification(data, MLP(features=[32], dropout=0.5))
    params, _ = task.init(KEY)
    batch = Batch(*data.train)
    first, again, other = (
        task.loss(params, {}, batch, jax.random.key(k))[0] for k in (1, 1, 2)
    )
    assert first == again != other
    metrics = [task.metrics(params, {}, batch)["loss"] for _ in range(2)]
    np.testing.assert_array_equal(*metrics)


def test_init_names_the_outputs_that_a_model_lacks():
    task = tasks.classification(toy(), MLP(features=[4], classes=7))
    with pytest.raises(UserError, match=r"must have 3 outputs"):
        task.init(KEY)


def test_negative_penalty_is_refused():
    with pytest.raises(UserError, match="l2=-1"):
        tasks.classification(toy(), LogisticRegression(), l2=-1)


def test_I2_importing_and_building_tasks_starts_no_backend():
    program = """
import parsgd.tasks as tasks, parsgd.data, parsgd.models as models
from flax import nnx
tasks.digits()
tasks.classification(tasks.digits().data, lambda rngs: nnx.Linear(64, 10, rngs=rngs))
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
