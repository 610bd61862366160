"""Methods that communicate in every step: a reducer and an optimizer, chained."""

from typing import Any

import optax

from parsgd.core import Strategy
from parsgd.errors import UserError
from parsgd.reducers import all_reduce, clip, skip_nonfinite as skipping


def data_parallel(
    optimizer: optax.GradientTransformation,
    *,
    reducer: optax.GradientTransformation | None = None,
    clip_before: float | None = None,
    clip_after: float | None = None,
    skip_nonfinite: bool = False,
) -> Strategy:
    """An optimizer that communicates: every worker applies it, in every step.

    With a worker's gradient g, optimizer state s and parameters x::

        u, s = optimizer(reducer(g), s, x),   x <- x + u

    Args:
        optimizer: Any optax transformation.
        reducer: What is done with the worker's own gradient first, such as
            ``error_feedback(one_bit())``; None for nothing. The same as
            ``optax.chain(reducer, optimizer)``.
        clip_before: Largest global norm of what goes into the reducer, each worker's
            own gradient, see `parsgd.reducers.clip`; None for any.
        clip_after: Largest global norm of what comes out of it, the average.
        skip_nonfinite: Whether all workers stand still in a step in which the gradient
            or update of one is not finite, see `parsgd.reducers.skip_nonfinite`.

    Raises:
        UserError: What is no optax transformation.
        ValueError: A norm that is not positive.

    Example:
        >>> import optax, parsgd
        >>> reducer = parsgd.error_feedback(parsgd.one_bit())
        >>> strategy = parsgd.data_parallel(optax.sgd(0.1), reducer=reducer)
    """
    check_transformation("optimizer", optimizer)
    if reducer is not None:
        check_transformation("reducer", reducer)
    before, after = _clip("clip_before", clip_before), _clip("clip_after", clip_after)
    parts = [x for x in (before, reducer, after, optimizer) if x is not None]
    optimizer = optax.chain(*parts) if len(parts) > 1 else optimizer
    if skip_nonfinite:
        optimizer = skipping(optimizer)

    def local(grads, state, params):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return Strategy(optimizer.init, local)


def _clip(name: str, norm: float | None) -> optax.GradientTransformation | None:
    if norm is None:
        return None
    if not norm > 0:
        raise ValueError(f"{name}={norm}: must be positive, or null for any norm")
    return clip(norm)


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
    clip_before: float | None = None,
    clip_after: float | None = None,
    skip_nonfinite: bool = False,
) -> Strategy:
    """Synchronous SGD: ``g <- mean(g)``, then the optimizer, in every step.

    Args:
        optimizer: Any optax transformation; sees the average gradient.
        algorithm: How gradients are averaged, see `parsgd.all_reduce`.
        group: Of the hierarchical algorithm.
        clip_before: See `parsgd.data_parallel`, and so for the next two.
        clip_after: Largest norm of the average.
        skip_nonfinite: Whether to stand still where a gradient is not finite.
    """
    native = algorithm == "native" and group is None
    if native and clip_before is None and not skip_nonfinite:
        # The average alone is enough, which lanes have cheaper than each its own.
        strategy = data_parallel(optimizer, clip_after=clip_after)
        return strategy._replace(mean_gradient=True)
    return data_parallel(
        optimizer,
        reducer=all_reduce(algorithm=algorithm, group=group),
        clip_before=clip_before,
        clip_after=clip_after,
        skip_nonfinite=skip_nonfinite,
    )
