"""Tasks: the loss and its weights, the penalty, metrics, and no backend at import."""

import functools
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
from parsgd.losses import cross_entropy
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


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int32, np.uint32])
def test_cross_entropy_of_labels_in_any_whole_type(kind):
    labels = jnp.array([3, 100], kind)
    found = cross_entropy(jnp.zeros((2, 300)), labels)
    np.testing.assert_allclose(found, np.log(300), rtol=1e-5)


def test_classes_that_a_model_rules_out_cost_nothing():
    logits = jnp.array([[0.0, -jnp.inf, 1.0], [-jnp.inf, 2.0, -jnp.inf]])
    labels = jnp.array([2, 1])
    expected = [np.log1p(np.exp(-1)), 0.0]
    np.testing.assert_allclose(cross_entropy(logits, labels), expected, rtol=1e-6)
    grad = jax.grad(lambda x: cross_entropy(x, labels).sum())(logits)
    assert np.isfinite(grad).all() and not np.any(grad[1])


def test_A4_what_fills_a_batch_up_may_even_cost_infinitely_much():
    data = toy()
    task = tasks.classification(data, LogisticRegression())
    params = random_like(task.init(KEY)[0])
    x = np.array(data.train.x[:4])
    x[2:] *= 1e38  # the logits become infinite
    padded = Batch(x, data.train.y[:4], np.array([2, 2, 0, 0], np.float32))
    real = Batch(data.train.x[:2], data.train.y[:2])
    assert not np.isfinite(task.loss(params, {}, padded._replace(weight=None), KEY)[0])
    both = jax.value_and_grad(lambda p, b: task.loss(p, {}, b, KEY)[0])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        both(params, padded),
        both(params, real),
    )


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
    loss, _ = task.loss(params, state, Batch(*data.train), KEY)
    logits = Half().apply({"params": params}, data.train.x)
    assert logits.dtype == jnp.bfloat16 and loss.dtype == jnp.float32
    expected = numpy_losses(logits.astype(jnp.float32), data.train.y).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


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


def test_convex_task_has_its_minimum_where_scipy_finds_it():
    from scipy.optimize import minimize

    task = tasks.breast_cancer(l2=0.05)
    x, y = (np.asarray(a) for a in task.data.train)

    def objective(flat):
        w, c = flat[:60].reshape(30, 2), flat[60:]
        return numpy_losses(x @ w + c, y).mean() + 0.025 * flat @ flat

    best = minimize(objective, np.zeros(62), tol=1e-10)
    params = {
        "head": {
            "kernel": jnp.asarray(best.x[:60].reshape(30, 2), jnp.float32),
            "bias": jnp.asarray(best.x[60:], jnp.float32),
        }
    }
    batch = Batch(x, y)
    loss, grad = jax.value_and_grad(lambda p: task.loss(p, {}, batch, KEY)[0])(params)
    np.testing.assert_allclose(loss, best.fun, rtol=1e-5)
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(grad)) < 1e-4


def test_text_metrics_are_means_over_the_tokens_of_a_window():
    class Echo(nn.Module):
        """Predicts that the same byte comes again."""

        @nn.compact
        def __call__(self, tokens):
            scale = self.param("scale", nn.initializers.ones, ())
            return scale * 9.0 * jax.nn.one_hot(tokens, 256)

    task = tasks.text(Echo(), context=8)
    batch = Batch(task.data.train.x[:16], task.data.train.y[:16])
    metrics = task.metrics(*task.init(KEY), batch)
    same = batch.x == batch.y
    np.testing.assert_allclose(metrics["accuracy"], same.mean(axis=1))
    log_sum = np.log(np.exp(9.0) + 255)
    expected = (log_sum - 9.0 * same).mean(axis=1)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)


def test_files_of_ones_own_become_tasks(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = (x[:, 0] > 0).astype(int)
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    lines = [f"{a},{b},{c},{k}" for (a, b, c), k in zip(x, y, strict=True)]
    (tmp_path / "mine.csv").write_text("\n".join(["a,b,c,y", *lines]))
    for build, file in ((tasks.npz, "mine.npz"), (tasks.csv, "mine.csv")):
        task = build(tmp_path / file, LogisticRegression())
        assert task.name == "mine" and task.data.classes == 2
        params, state = task.init(KEY)
        batch = Batch(*task.data.test)
        # Zero logits: every class is as likely as the other.
        loss = task.metrics(params, state, batch)["loss"]
        np.testing.assert_allclose(loss, np.log(2), rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "default"),
    [
        (tasks.digits, "MLP"),
        (tasks.breast_cancer, "LogisticRegression"),
        (tasks.synthetic, "MLP"),
        (functools.partial(tasks.text, context=4), "GPT"),
    ],
)
def test_every_named_task_starts_near_chance_with_its_default_model(build, default):
    task = build()
    shapes = jax.eval_shape(task.init, KEY)
    rng = np.random.default_rng(0)
    params, state = jax.tree.map(
        lambda a: jnp.asarray(rng.normal(size=a.shape, scale=0.01), a.dtype), shapes
    )
    batch = Batch(task.data.train.x[:64], task.data.train.y[:64])
    loss, after = task.loss(params, state, batch, KEY)
    assert after == state == {}
    assert abs(float(loss) - np.log(task.data.classes)) < 0.3
    assert ("positions" in params) == (default == "GPT")
    assert ("Dense_0" in params) == (default != "LogisticRegression")


def test_only_built_in_models_are_known_to_be_separable():
    class Centred(MLP):
        """Looks at the batch as a whole."""

        def __call__(self, x, train=False):
            return super().__call__(x - x.mean(axis=0), train)

    assert tasks.digits(MLP(features=(8,))).separable
    assert not tasks.digits(Centred(features=(8,))).separable
