"""Methods that communicate in every step: a reducer and an optimizer, chained."""

from typing import Any

import optax

from parsgd.core import Strategy
from parsgd.errors import UserError
from parsgd.reducers import all_reduce


def data_parallel(
    optimizer: optax.GradientTransformation,
    *,
    reducer: optax.GradientTransformation | None = None,
) -> Strategy:
    """An optimizer that communicates: every worker applies it, in every step.

    With a worker's gradient g, optimizer state s and parameters x::

        u, s = optimizer(reducer(g), s, x),   x <- x + u

    Args:
        optimizer: Any optax transformation.
        reducer: What is done with the worker's own gradient first, such as
            ``error_feedback(one_bit())``; None for nothing. The same as
            ``optax.chain(reducer, optimizer)``.

    Example:
        >>> import optax, parsgd
        >>> reducer = parsgd.error_feedback(parsgd.one_bit())
        >>> strategy = parsgd.data_parallel(optax.sgd(0.1), reducer=reducer)
    """
    check_transformation("optimizer", optimizer)
    if reducer is not None:
        check_transformation("reducer", reducer)
        optimizer = optax.chain(reducer, optimizer)

    def local(grads, state, params):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return Strategy(optimizer.init, local)


def check_transformation(name: str, value: Any) -> None:
    """Refuse what is no transformation of gradients, such as a learning rate.

    Raises:
        UserError: Names the argument.
    """
    # By its functions: optax.MultiSteps is one too, and no subclass.
    parts = (getattr(value, "init", None), getattr(value, "update", None))
    if not all(map(callable, parts)):
        raise UserError(
            f"{name}={value!r}: give an optax transformation, such as optax.sgd(0.1)"
        )


def single(optimizer: optax.GradientTransformation) -> Strategy:
    """One worker and its optimizer: the reference. With more workers nothing is sent.

    Args:
        optimizer: Any optax transformation.
    """
    return data_parallel(optimizer)


def sync_sgd(
    optimizer: optax.GradientTransformation,
    *,
    algorithm: str = "native",
    group: int | None = None,
) -> Strategy:
    """Synchronous SGD: ``g <- mean(g)``, then the optimizer, in every step.

    Args:
        optimizer: Any optax transformation; sees the average gradient.
        algorithm: How gradients are averaged, see `parsgd.all_reduce`.
        group: Of the hierarchical algorithm.
    """
    if algorithm == "native" and group is None:
        return data_parallel(optimizer)._replace(mean_gradient=True)
    return data_parallel(
        optimizer, reducer=all_reduce(algorithm=algorithm, group=group)
    )
