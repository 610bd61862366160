"""Local SGD: workers train alone for H steps, then average their parameters."""

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.core import Algorithm, Phase, Strategy
from parsgd.strategies.momentum import check_policy, synchronise


def local_sgd(
    optimizer: optax.GradientTransformation, *, momentum: str = "keep"
) -> Strategy:
    """Model averaging every H steps.

    Each worker, H times, then all::

        x <- x + optimizer(g)
        x <- mean(x)

    With H = 1 and a linear optimizer (SGD, heavy-ball momentum with ``"keep"``) it is
    synchronous SGD.

    Args:
        optimizer: The local optimizer, any optax transformation.
        momentum: What becomes of its state at an average: ``"keep"`` (each worker's
            own; the usual implementation), ``"average"`` or ``"reset"``.

    Raises:
        ValueError: Unknown ``momentum``.

    References:
        Zinkevich et al., "Parallelized Stochastic Gradient Descent", NeurIPS 2010.
        Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.
    """
    check_policy(momentum)

    def init(params):
        return optimizer.init(jax.tree.map(jnp.copy, params))

    def local(grads, state, params):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def sync(params, state):
        params = comm.mean(params)
        return params, synchronise(momentum, optimizer, state, params)

    return Strategy(init, local, sync)


def post_local_sgd(
    optimizer: optax.GradientTransformation,
    *,
    switch_step: int,
    momentum: str = "keep",
) -> Algorithm:
    """Local SGD that averages after every step until ``switch_step``, then every H.

    Args:
        optimizer: The local optimizer, any optax transformation.
        switch_step: Step S of each worker from which H local steps are taken; the paper
            switches at the first decay of the learning rate. S at or beyond the end of
            the run is averaging after every step throughout.
        momentum: As in `local_sgd`.

    Raises:
        ValueError: Unknown ``momentum``, or a negative ``switch_step``.

    References:
        Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020.
    """
    if switch_step < 0:
        raise ValueError(f"switch_step={switch_step}: must be 0 or more")
    strategy = local_sgd(optimizer, momentum=momentum)
    if switch_step == 0:
        return strategy
    return (Phase(0, strategy, local_steps=1), Phase(switch_step, strategy))
