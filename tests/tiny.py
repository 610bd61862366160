"""A task small enough that compiling it is all that takes time."""

import jax
import jax.numpy as jnp
import numpy as np

from parsgd.data.dataset import Dataset, Split, as_floats
from parsgd.tasks import Batch, Task

FEATURES, CLASSES = 9, 4


def _split(rng, count):
    x = rng.normal(size=(count, FEATURES)).astype(np.float32)
    return Split(x, (np.arange(count) % CLASSES).astype(np.int32))


def tiny(count=96, *, dtype=jnp.float32, seed=0) -> Task:
    """Softmax regression with a hidden layer: 2 matrices and 2 biases."""
    rng = np.random.default_rng(seed)
    data = Dataset("tiny", _split(rng, count), _split(rng, 20), CLASSES, as_floats)

    start = {
        "w1": 0.5 * rng.normal(size=(FEATURES, 16)),
        "b1": np.zeros(16),
        "w2": 0.5 * rng.normal(size=(16, CLASSES)),
        "b2": np.zeros(CLASSES),
    }

    def init(key):
        del key  # constants compile faster than random numbers
        return {k: jnp.asarray(v, dtype) for k, v in start.items()}, {}

    def per_example(params, x, y):
        h = jnp.tanh(x.astype(dtype) @ params["w1"] + params["b1"][None])
        logits = (h @ params["w2"] + params["b2"][None]).astype(jnp.float32)
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)[:, 0]
        return losses, (jnp.argmax(logits, -1) == y).astype(jnp.float32)

    def loss(params, model, batch: Batch, key):
        del key
        losses, _ = per_example(params, batch.x, batch.y)
        weight = 1.0 if batch.weight is None else batch.weight
        return jnp.mean(losses * weight), model

    def metrics(params, model, batch: Batch):
        losses, hits = per_example(params, batch.x, batch.y)
        return {"loss": losses, "accuracy": hits}

    return Task("tiny", data, init, loss, metrics)


def scalar(x, *, w=2.0, test=None) -> Task:
    """loss = mean (w x - 1)^2 of one parameter w: gradients can be done by hand."""
    x = np.asarray(x, np.float32)
    y = np.zeros(len(x), np.int32)
    data = Dataset("scalar", Split(x, y), Split(x, y), 2, as_floats)

    def losses(params, batch):
        return jnp.square(params["w"] * batch.x - 1)

    def loss(params, model, batch, key):
        weight = 1.0 if batch.weight is None else batch.weight
        return jnp.mean(weight * losses(params, batch)), model

    def metrics(params, model, batch):
        return {"loss": losses(params, batch), "accuracy": jnp.zeros(len(batch.x))}

    return Task("scalar", data, lambda key: ({"w": jnp.float32(w)}, {}), loss, metrics)
