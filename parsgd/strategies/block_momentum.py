"""Block momentum (BMUF): averaging with momentum over whole rounds.

Chen and Huo, "Scalable Training of Deep Learning Machines by Incremental Block
Training with Intra-block Parallel Optimization and Blockwise Model-Update Filtering",
ICASSP 2016.

A round ("block") ends with each worker's x_w. With the round's starting point y, the
same for all workers, the average progress is ``G = mean(x) - y``, and the filter keeps
a velocity D::

    D <- eta D + zeta G
    classical   y <- y + D
    nesterov    y <- y + eta D + zeta G        the model is y - eta D

The Nesterov form is the paper's: workers start at ``y = model + eta D``. In terms of y
it is Nesterov's step on the pseudo-gradient, so both are an outer loop.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.core import Params, Strategy
from parsgd.reducers import all_reduce
from parsgd.strategies.outer import outer_loop

GAINS = ("paper", "cntk", "fairseq")


class FilterState(NamedTuple):
    """State of `block_filter`: the velocity D, in units of the parameters."""

    velocity: Params


def block_momentum_from_time_constant(
    time_constant: float, *, workers: int, local_steps: int, worker_batch: int
) -> float:
    """Block momentum from a time constant in samples, as CNTK states it.

    ``eta = exp(-block / time_constant)`` with a block of ``workers * local_steps *
    worker_batch`` samples.

    Args:
        time_constant: Samples of all workers together, > 0.
        workers: W.
        local_steps: H.
        worker_batch: b.

    Example:
        >>> from parsgd.strategies import block_momentum_from_time_constant
        >>> eta = block_momentum_from_time_constant(
        ...     4000.0, workers=4, local_steps=10, worker_batch=32)
        >>> round(eta, 4)
        0.7261

    Raises:
        ValueError: A number that is not positive, or none.
    """
    given = {"time_constant": time_constant, "workers": workers}
    given |= {"local_steps": local_steps, "worker_batch": worker_batch}
    for name, value in given.items():
        if not (isinstance(value, int | float) and value > 0):
            raise ValueError(
                f"{name}={value}: block momentum from a time constant needs a number, "
                "more than 0"
            )
    return math.exp(-workers * local_steps * worker_batch / time_constant)


def block_filter(
    *,
    eta: float | None = None,
    zeta: float = 1.0,
    nesterov: bool = False,
    gain: str = "paper",
) -> optax.GradientTransformation:
    """The filter on the averaged pseudo-gradient ``d = -G``, for an outer loop.

    Its updates are the step of y; the module's docstring has the equations.

    Args:
        eta: Block momentum in [0, 1); None for ``1 - 1/W``.
        zeta: Block learning rate > 0.
        nesterov: Whether the step goes to the look-ahead point.
        gain: As in `block_momentum`.

    Raises:
        ValueError: An argument out of range, or an unknown ``gain``.
    """
    if gain not in GAINS:
        raise ValueError(f"gain={gain!r}: choose one of {', '.join(GAINS)}")
    if zeta <= 0:
        raise ValueError(f"zeta={zeta}: the block learning rate must be positive")
    if eta is not None and not 0 <= eta < 1:
        raise ValueError(f"eta={eta}: block momentum must be in [0, 1)")

    def init(params):
        return FilterState(jax.tree.map(jnp.zeros_like, params))

    def update(updates, state, params=None):
        del params
        workers = comm.world()
        decay = 1 - 1 / workers if eta is None else eta
        scale = zeta * workers * (1 - decay) if gain == "cntk" else zeta
        velocity = jax.tree.map(
            lambda v, d: decay * v - scale * d, state.velocity, updates
        )
        if not nesterov:
            return velocity, FilterState(velocity)
        if gain == "paper":
            step = jax.tree.map(lambda v, d: decay * v - scale * d, velocity, updates)
        else:
            step = jax.tree.map(lambda v: (1 + decay) * v, velocity)
        return step, FilterState(velocity)

    return optax.GradientTransformation(init, update)


def block_momentum(
    optimizer: optax.GradientTransformation,
    *,
    eta: float | None = None,
    zeta: float = 1.0,
    nesterov: bool = False,
    gain: str = "paper",
    momentum_policy: str = "reset",
    reducer: optax.GradientTransformation | None = None,
) -> Strategy:
    """Block momentum: local SGD whose averages carry momentum from round to round.

    The module's docstring has the equations. In a steady state a round moves the model
    by ``zeta G / (1 - eta)``: with the default eta the W workers' work counts in full,
    where plain averaging counts it as one worker's.

    Args:
        optimizer: The local optimizer, any optax transformation.
        eta: Block momentum in [0, 1); None for ``1 - 1/W``. For CNTK's time constant
            see `block_momentum_from_time_constant`.
        zeta: Block learning rate > 0, applied to the average.
        nesterov: Start each round from the look-ahead point.
        gain: Which implementation's step: ``"paper"``; ``"cntk"``, whose
            ``(1 - eta) zeta sum_w(x_w - y)`` equals the paper's only at
            ``eta = 1 - 1/W``; ``"fairseq"``, ``zeta G`` as in the paper. With
            ``nesterov`` the last two take the look-ahead point as the next model: they
            add ``(1 + eta) D`` and gain (1 + eta)/(1 - eta) where the paper's form
            gains 1/(1 - eta).
        momentum_policy: What becomes of the local optimizer's state: ``"reset"``
            (CNTK's default), ``"keep"`` or ``"average"``.
        reducer: How the workers' progress is averaged; None for a dense all-reduce.

    Raises:
        ValueError: Unknown ``gain`` or ``momentum_policy``, or ``eta`` out of range.

    References:
        Chen and Huo, ICASSP 2016.
    """
    filtered = block_filter(eta=eta, zeta=zeta, nesterov=nesterov, gain=gain)
    outer = optax.chain(reducer or all_reduce(), filtered)
    loop = outer_loop(optimizer, outer, momentum_policy=momentum_policy)

    def sync(params, state):
        if comm.world() == 1 and not eta and zeta == 1 and reducer is None:
            # The filter is the identity, and y + (x - y) would round.
            _, state = loop.sync(params, state)
            return params, state._replace(anchor=params)
        return loop.sync(params, state)

    def readout(params, state):
        if not nesterov or gain != "paper":
            return loop.readout(params, state)
        decay = 1 - 1 / comm.world() if eta is None else eta
        velocity = state.outer[1].velocity
        return jax.tree.map(lambda y, v: y - decay * v, state.anchor, velocity)

    return loop._replace(sync=sync, readout=readout)
