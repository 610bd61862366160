"""A task: data, a model and a loss, as the pure functions that training needs.

For a batch of b slots with weights ``w_i`` (1 without padding, see
`parsgd.data.Order`) and the optional penalty ``l2``::

    loss = 1/b sum_i w_i * crossentropy_i  +  l2/2 |params|^2

For text, ``crossentropy_i`` is the mean over the tokens of window i.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parsgd import models
from parsgd.data import Dataset, validate
from parsgd.errors import UserError
from parsgd.gradient import Params, State
from parsgd.losses import cross_entropy, per_example
from parsgd.models import as_model
from parsgd.models.classifier import Classifier


class Batch(NamedTuple):
    """Examples as they are stored: `Task.loss` prepares them on the device.

    Attributes:
        x: Inputs ``[b, ...]``.
        y: Labels ``[b]`` or ``[b, T]``.
        weight: ``[b]`` float32, or None when every slot counts once.
    """

    x: jax.Array
    y: jax.Array
    weight: jax.Array | None = None


class Task(NamedTuple):
    """Everything that training knows about its problem, as one worker sees it.

    Attributes:
        name: Its name in tables and logs.
        data: The `Dataset`.
        init: ``(key) -> (params, model_state)``, the latter what a worker keeps for
            itself, such as batch statistics; ``{}`` where there is none.
        loss: ``(params, model_state, batch, key) -> (float32 scalar, model_state)``, in
            training mode.
        metrics: ``(params, model_state, batch) -> {"loss": [b], "accuracy": [b]}``, in
            evaluation mode. Each loss has the penalty: their mean is the objective.
        separable: Whether ``loss`` is a mean over slots, each computed on its own.
    """

    name: str
    data: Dataset
    init: Callable[[jax.Array], tuple[Params, State]]
    loss: Callable[[Params, State, Batch, jax.Array], tuple[jax.Array, State]]
    metrics: Callable[[Params, State, Batch], dict[str, jax.Array]]
    separable: bool = False


def classification(
    data: Dataset,
    model: Any,
    *,
    name: str | None = None,
    l2: float = 0.0,
    separable: bool | None = None,
) -> Task:
    """A task of softmax cross-entropy, in float32 whatever the model computes in.

    Args:
        data: The examples; see `parsgd.data.validate` for what they must satisfy.
        model: Anything that `parsgd.models.as_model` takes; a built-in model without
            ``classes`` gets the data set's.
        name: Default, the data set's name.
        l2: Coefficient of ``1/2 |params|^2`` over all parameters, at least 0. It does
            not depend on the batch or on the number of workers.
        separable: Whether each example of a batch is treated on its own, so that the
            batches of workers on one device may be run as one, which is faster; see
            `Task`. Default: True for built-in models only.

    Returns:
        A `Task` whose metrics are ``loss`` and ``accuracy``.

    Raises:
        UserError: ``data`` cannot be trained on, ``model`` is not a model, or ``l2`` is
            negative; or, from `Task.init`, logits that do not fit the labels.

    Example:
        >>> import parsgd
        >>> data = parsgd.data.load_digits()
        >>> task = classification(data, models.MLP(features=[16]))
        >>> params, model_state = task.init(jax.random.key(0))
        >>> batch = Batch(task.data.train.x[:4], task.data.train.y[:4])
        >>> task.loss(params, model_state, batch, jax.random.key(1))[0].shape
        ()
        >>> sorted(task.metrics(params, model_state, batch))
        ['accuracy', 'loss']
    """
    if not 0 <= l2 < math.inf:
        raise UserError(f"l2={l2}: a penalty must be 0 or more, and finite.")
    validate(data)
    if isinstance(model, Classifier):
        model = model.for_classes(data.classes)
    if separable is None:  # a subclass may do anything
        separable = getattr(models, type(model).__name__, None) is type(model)
    network = as_model(model)

    def penalty(params):
        if l2 == 0:
            return 0.0
        leaves = (p.astype(jnp.float32) for p in jax.tree.leaves(params))
        return 0.5 * l2 * sum(jnp.sum(p * p) for p in leaves)

    def init(key):
        x = data.prepare(jnp.asarray(data.train.x[:1]))
        params, model_state = network.init(key, x)
        logits, _ = jax.eval_shape(
            lambda *a: network.apply(*a, key=None, train=False), params, model_state, x
        )
        expected = (*data.train.y[:1].shape, data.classes)
        if logits.shape != expected:
            do = f"its last layer must have {data.classes} outputs"
            if logits.ndim > len(expected):
                do = "flatten what comes in first, as in x = x.reshape(len(x), -1)"
            if logits.ndim < len(expected):
                do = "it must predict every position, as task/model=gpt does"
            raise UserError(
                f"{data.name}: the model returns logits of shape {logits.shape} for "
                f"one example where the labels need {expected}: {do}."
            )
        return params, model_state

    def loss(params, model_state, batch, key):
        logits, model_state = network.apply(
            params, model_state, data.prepare(batch.x), key=key, train=True
        )
        if batch.weight is not None:
            # What only fills a batch up counts for nothing, also if it is infinite.
            real = (batch.weight > 0).reshape(-1, *[1] * (logits.ndim - 1))
            logits = jnp.where(real, logits, 0.0)
        losses = cross_entropy(logits, batch.y)
        if batch.weight is not None:
            losses = losses * batch.weight
        return jnp.mean(losses) + penalty(params), model_state

    def metrics(params, model_state, batch):
        logits, _ = network.apply(
            params, model_state, data.prepare(batch.x), key=None, train=False
        )
        hits = (jnp.argmax(logits, axis=-1) == batch.y).astype(jnp.float32)
        losses = cross_entropy(logits, batch.y) + penalty(params)
        return {"loss": losses, "accuracy": per_example(hits)}

    return Task(name or data.name, data, init, loss, metrics, separable)
