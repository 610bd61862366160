"""Methods of single steps: a reducer, if any, and an optimizer, chained."""

import optax

from parsgd.core import Strategy
from parsgd.errors import UserError, check_transformation
from parsgd.reducers import all_reduce, clip, skip_nonfinite as skipping


def data_parallel(
    optimizer: optax.GradientTransformation,
    *,
    reducer: optax.GradientTransformation | None = None,
    clip_before: float | None = None,
    clip_after: float | None = None,
    skip_nonfinite: bool = False,
) -> Strategy:
    """A reducer and an optimizer, which every worker applies in every step.

    With a worker's gradient g, optimizer state s and parameters x::

        u, s = optimizer(reducer(g), s, x),   x <- x + u

    All communication is in the reducer, or in the optimizer if that contains one:
    ``reducer=r`` is the same as the optimizer ``optax.chain(r, optimizer)``. With
    neither, nothing is sent (but 4 bytes with ``skip_nonfinite``) and each worker
    trains alone, as with `single`; a run says so at its start. (Methods with rounds,
    as `block_momentum` and `diloco`, take ``reducer=None`` for a dense all-reduce.)

    Args:
        optimizer: Any optax transformation, perhaps a chain with a reducer in it.
        reducer: What is done with the worker's own gradient first, such as
            ``all_reduce()`` or ``error_feedback(one_bit())``; None for nothing.
        clip_before: Largest global norm of what goes into the reducer, each worker's
            own gradient, above 0; None for any norm. See `parsgd.reducers.clip`.
        clip_after: Largest global norm of what comes out of it, the average, above 0;
            None for any norm.
        skip_nonfinite: Whether all workers stand still in a step in which the gradient
            or update of one is not finite, see `parsgd.reducers.skip_nonfinite`.

    Returns:
        A `parsgd.Strategy` whose state is that of the chained transformations.

    Raises:
        UserError: ``optimizer`` or ``reducer`` is not an optax transformation, or
            ``clip_before`` or ``clip_after`` is not positive.

    Example:
        >>> import jax, jax.numpy as jnp, optax, parsgd
        >>> strategy = parsgd.data_parallel(optax.sgd(1.0), reducer=parsgd.all_reduce())
        >>> g = jnp.array([1.0, 3.0])  # of two workers
        >>> step = lambda g: strategy.local(g, strategy.init(g), jnp.zeros_like(g))[0]
        >>> jax.vmap(step, axis_name=parsgd.comm.LANES)(g)
        Array([-2., -2.], dtype=float32)
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


def single(optimizer: optax.GradientTransformation) -> Strategy:
    """One worker and its optimizer, ``x <- x + optimizer(g)``: the reference.

    Nothing is sent. Several workers would each train alone, with the average of their
    parameters evaluated, and a run says so at its start.

    Args:
        optimizer: Any optax transformation.

    Returns:
        A `parsgd.Strategy` whose state is the optimizer's.

    Raises:
        UserError: ``optimizer`` is not an optax transformation.

    Example:
        >>> import jax.numpy as jnp, optax, parsgd
        >>> strategy = parsgd.single(optax.sgd(0.5))
        >>> x = jnp.array([1.0, 2.0])
        >>> strategy.local(jnp.array([2.0, 0.0]), strategy.init(x), x)[0]
        Array([0., 2.], dtype=float32)
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
    """Synchronous SGD: the optimizer on the average gradient, in every step.

    With a worker's gradient g, optimizer state s and parameters x::

        u, s = optimizer(mean(g), s, x),   x <- x + u

    Args:
        optimizer: Any optax transformation; sees the average gradient.
        algorithm: How gradients are averaged: ``"native"``, ``"ring"``, ``"tree"`` or
            ``"hierarchical"``, see `parsgd.all_reduce`.
        group: Workers in each group of the hierarchical algorithm, a divisor of W;
            None for the other algorithms.
        clip_before: Largest global norm of each worker's own gradient, above 0; None
            for any norm.
        clip_after: Largest global norm of the average, above 0; None for any norm.
        skip_nonfinite: Whether all workers stand still in a step in which the gradient
            or update of one is not finite, see `parsgd.reducers.skip_nonfinite`.

    Returns:
        A `parsgd.Strategy`. With the native algorithm and neither ``clip_before`` nor
        ``skip_nonfinite``, ``local`` expects the average gradient (``mean_gradient``),
        which a round then takes at once for all workers of a device.

    Raises:
        UserError: ``optimizer`` is not an optax transformation, a norm is not positive,
            unknown ``algorithm``, ``group`` given without the hierarchical algorithm or
            missing with it, or, in the first step, not a divisor of W.

    Example:
        >>> import jax, jax.numpy as jnp, optax, parsgd
        >>> strategy = parsgd.sync_sgd(optax.sgd(1.0), algorithm="ring")
        >>> g = jnp.array([1.0, 3.0])  # of two workers
        >>> step = lambda g: strategy.local(g, strategy.init(g), jnp.zeros_like(g))[0]
        >>> jax.vmap(step, axis_name=parsgd.comm.LANES)(g)
        Array([-2., -2.], dtype=float32)
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


def _clip(name: str, norm: float | None) -> optax.GradientTransformation | None:
    if norm is None:
        return None
    if not norm > 0:
        raise UserError(
            f"{name}={norm}: must be positive, or None (null on the command line) for "
            "any norm"
        )
    return clip(norm)
