"""Tasks: data, a model and a loss, as the pure functions that training needs.

For a batch of b slots with weights ``w_i`` (1 without padding, see
`parsgd.data.Order`) and the optional penalty ``l2``::

    loss = 1/b sum_i w_i * crossentropy_i  +  l2/2 |params|^2

For text, ``crossentropy_i`` is the mean over the tokens of window i.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from parsgd import data as sources, models
from parsgd.data import Dataset, validate
from parsgd.errors import UserError
from parsgd.gradient import Params, State
from parsgd.losses import cross_entropy, per_example
from parsgd.models import GPT, MLP, LogisticRegression, as_model
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
    """Everything that training knows of its problem; one worker's view.

    Attributes:
        name: How tables and logs call it.
        data: The `Dataset`.
        init: ``(key) -> (params, model_state)``, the latter what a worker keeps for
            itself, such as batch statistics; ``{}`` where there is none.
        loss: ``(params, model_state, batch, key) -> (float32 scalar, model_state)``, in
            training mode.
        metrics: ``(params, model_state, batch) -> {"loss": [b], "accuracy": [b]}``, in
            evaluation mode. Each loss has the penalty: their mean is the objective.
        separable: Whether ``loss`` is a mean over slots that are computed apart.
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
    """Softmax cross-entropy, in float32 whatever the model computes in.

    Args:
        data: What to learn; see `parsgd.data.validate` for what it must satisfy.
        model: Anything that `parsgd.models.as_model` takes; a built-in model without
            ``classes`` gets the data set's.
        name: Default, the data set's name.
        l2: Coefficient of ``1/2 |params|^2`` over all parameters, at least 0. It does
            not depend on the batch or on the number of workers.
        separable: Whether each example of a batch is treated on its own, so that the
            batches of workers on one device may be run as one, which is faster; see
            `Task`. Default: True for built-in models only.

    Raises:
        UserError: What cannot be used; from `Task.init`, logits that do not fit the
            labels.

    Example:
        >>> task = digits(MLP(features=[16]))
        >>> params, model_state = task.init(jax.random.key(0))
        >>> batch = Batch(task.data.train.x[:4], task.data.train.y[:4])
        >>> task.loss(params, model_state, batch, jax.random.key(1))[0].shape
        ()
        >>> sorted(task.metrics(params, model_state, batch))
        ['accuracy', 'loss']
    """
    if l2 < 0:
        raise UserError(f"l2={l2}: a penalty must be 0 or more.")
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


def digits(
    model: Any = None,
    *,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    l2: float = 0.0,
) -> Task:
    """Handwritten digits, 8 x 8 pixels; `parsgd.data.load_digits` has its arguments.

    ``model`` and ``l2`` as in `classification`; the default is ``MLP(features=[64])``.
    """
    data = sources.load_digits(test_fraction=test_fraction, split_seed=split_seed)
    return classification(data, _given(model, MLP(features=(64,))), l2=l2)


def fashion_mnist(
    model: Any = None, *, data_dir: str | Path | None = None, l2: float = 0.0
) -> Task:
    """70,000 images of clothes; `parsgd.data.load_fashion_mnist` says from where.

    ``model`` and ``l2`` as in `classification`; the default is ``MLP(features=[128])``.
    """
    data = sources.load_fashion_mnist(data_dir=data_dir)
    return classification(data, _given(model, MLP(features=(128,))), l2=l2)


def breast_cancer(
    model: Any = None,
    *,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    l2: float = 1e-2,
) -> Task:
    """A convex problem; `parsgd.data.load_breast_cancer` has its arguments.

    ``model`` and ``l2`` as in `classification`. With the default model,
    ``LogisticRegression()``, the mean loss of `Task.metrics` has one minimum.
    """
    data = sources.load_breast_cancer(
        test_fraction=test_fraction, split_seed=split_seed
    )
    return classification(data, _given(model, LogisticRegression()), l2=l2)


def synthetic(
    model: Any = None,
    *,
    examples: int = 10_000,
    test_examples: int = 2_000,
    features: int = 32,
    classes: int = 10,
    kind: Literal["clusters", "teacher"] = "clusters",
    separation: float = 4.0,
    label_noise: float = 0.0,
    data_seed: int = 0,
    l2: float = 0.0,
) -> Task:
    """A seeded problem of any size; `parsgd.data.make_synthetic` has its arguments.

    ``model`` and ``l2`` as in `classification`; the default is ``MLP(features=[64])``.
    """
    data = sources.make_synthetic(
        examples=examples,
        test_examples=test_examples,
        features=features,
        classes=classes,
        kind=kind,
        separation=separation,
        label_noise=label_noise,
        data_seed=data_seed,
    )
    return classification(data, _given(model, MLP(features=(64,))), l2=l2)


def text(
    model: Any = None,
    *,
    path: str | Path | None = None,
    context: int = 64,
    test_fraction: float = 0.1,
    l2: float = 0.0,
) -> Task:
    """The next byte of a text; `parsgd.data.load_text` has its arguments.

    ``model`` and ``l2`` as in `classification`: tokens ``[b, T]`` to logits
    ``[b, T, 256]``; the default is ``GPT()``.
    """
    data = sources.load_text(path=path, context=context, test_fraction=test_fraction)
    return classification(data, _given(model, GPT()), l2=l2)


def npz(
    path: str | Path,
    model: Any = None,
    *,
    x: str = "x",
    y: str = "y",
    x_test: str | None = None,
    y_test: str | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    standardize: bool = True,
    l2: float = 0.0,
) -> Task:
    """Arrays of one's own; `parsgd.data.load_npz` has the arguments.

    ``model`` and ``l2`` as in `classification`; the default is ``MLP(features=[128])``.
    """
    data = sources.load_npz(
        path,
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        test_fraction=test_fraction,
        split_seed=split_seed,
        standardize=standardize,
    )
    return classification(data, _given(model, MLP(features=(128,))), l2=l2)


def csv(
    path: str | Path,
    model: Any = None,
    *,
    label: str | int = -1,
    separator: str = ",",
    test_fraction: float = 0.2,
    split_seed: int = 0,
    standardize: bool = True,
    l2: float = 0.0,
) -> Task:
    """A table of one's own; `parsgd.data.load_csv` has the arguments.

    ``model`` and ``l2`` as in `classification`; the default is ``MLP(features=[128])``.
    """
    data = sources.load_csv(
        path,
        label=label,
        separator=separator,
        test_fraction=test_fraction,
        split_seed=split_seed,
        standardize=standardize,
    )
    return classification(data, _given(model, MLP(features=(128,))), l2=l2)


def _given(model: Any, default: Any) -> Any:
    return default if model is None else model
