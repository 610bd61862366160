"""Local SGD: workers train alone for H steps, then average their parameters."""

import optax

from parsgd import comm
from parsgd.core import Algorithm, Phase, Strategy
from parsgd.errors import check_transformation, check_whole
from parsgd.strategies.data_parallel import data_parallel
from parsgd.strategies.momentum import check_policy, synchronise
from parsgd.strategies.outer import outer_loop


def local_sgd(
    optimizer: optax.GradientTransformation,
    *,
    momentum_policy: str = "keep",
    reducer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Model averaging every H steps.

    In each round, with each worker's gradient g::

        x <- x + optimizer(g)       H times, by each worker alone
        x <- mean(x)                once, by all

    With H = 1 and a linear optimizer (SGD, heavy-ball momentum with ``"keep"``) it is
    synchronous SGD. With a ``reducer`` the second line is ``y <- y - reducer(y - x)``,
    ``x <- y``, where y is where the round started.

    Args:
        optimizer: The local optimizer, any optax transformation.
        momentum_policy: What becomes of its state at an average: ``"keep"`` (each
            worker's own; the usual implementation), ``"average"`` or ``"reset"``.
        reducer: How the workers' progress since the last average is averaged, such as
            ``error_feedback(top_k())``; None for averaging the parameters themselves.

    Returns:
        A `parsgd.Strategy`; H is the number of local steps of the run.

    Raises:
        UserError: ``optimizer`` or ``reducer`` is not an optax transformation, or
            unknown ``momentum_policy``.

    Example:
        >>> import jax, jax.numpy as jnp, optax, parsgd
        >>> strategy = parsgd.local_sgd(optax.sgd(0.1))
        >>> x = jnp.array([1.0, 3.0])  # of two workers, after their local steps
        >>> sync = jax.vmap(strategy.sync, axis_name=parsgd.comm.LANES)
        >>> sync(x, jax.vmap(strategy.init)(x))[0]
        Array([2., 2.], dtype=float32)

    References:
        Zinkevich et al., "Parallelized Stochastic Gradient Descent", NeurIPS 2010.
        Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019,
        https://arxiv.org/abs/1805.09767.

    Differences from the papers:
        Zinkevich et al. average once, at the end. Stich analyses SGD without momentum
        and a weighted average of all iterates; here any optimizer may run, and the last
        average is the result.
    """
    check_policy(momentum_policy)
    if reducer is not None:
        check_transformation("reducer", reducer)
        outer = optax.chain(reducer, optax.scale(-1.0))
        return outer_loop(optimizer, outer, momentum_policy=momentum_policy)

    def sync(params, state):
        params = comm.mean(params)
        return params, synchronise(momentum_policy, optimizer, state, params)

    return data_parallel(optimizer)._replace(sync=sync)


def post_local_sgd(
    optimizer: optax.GradientTransformation,
    *,
    switch_step: int,
    momentum_policy: str = "keep",
) -> Algorithm:
    """Local SGD that averages after every step until ``switch_step``, then every H.

    With S = ``switch_step``, in step t of each worker::

        x <- x + optimizer(g)
        x <- mean(x)            if t < S, or after every H-th step from S on

    Args:
        optimizer: The local optimizer, any optax transformation.
        switch_step: Step S of each worker from which H local steps are taken, 0 or
            more; the paper switches at the first decay of the learning rate. S at or
            beyond the end of the run is averaging after every step throughout.
        momentum_policy: As in `local_sgd`, for the rounds from S on. Before S
            ``"reset"`` acts as ``"keep"``, or there would be no momentum at all.

    Returns:
        Two phases, the first with one local step, the second, from S on, with the run's
        H; a single `parsgd.Strategy` if S is 0.

    Raises:
        UserError: ``optimizer`` is not an optax transformation, ``switch_step`` is not
            a whole number of 0 or more, or unknown ``momentum_policy``.

    Example:
        >>> import optax, parsgd
        >>> phases = parsgd.post_local_sgd(optax.sgd(0.1), switch_step=100)
        >>> [(phase.start, phase.local_steps) for phase in phases]
        [(0, 1), (100, None)]

    References:
        Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020,
        https://arxiv.org/abs/1808.07217.

    Differences from the paper:
        S is a step, not tied to a decay of the learning rate. Until S parameters are
        averaged after every step, where the paper averages gradients: the same for SGD
        and heavy-ball momentum, but not for other optimizers.
    """
    check_whole("switch_step", switch_step, 0)
    strategy = local_sgd(optimizer, momentum_policy=momentum_policy)
    if switch_step == 0:
        return strategy
    before = "keep" if momentum_policy == "reset" else momentum_policy
    first = local_sgd(optimizer, momentum_policy=before)
    return (Phase(0, first, local_steps=1), Phase(switch_step, strategy))
