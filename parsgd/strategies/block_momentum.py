"""Block momentum (BMUF): averaging with momentum over whole rounds.

Chen and Huo, "Scalable Training of Deep Learning Machines by Incremental Block
Training with Intra-block Parallel Optimization and Blockwise Model-Update Filtering",
ICASSP 2016.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.core import Params, Strategy
from parsgd.errors import (
    UserError,
    check_choice,
    check_positive,
    check_transformation,
)
from parsgd.reducers import all_reduce
from parsgd.strategies.outer import outer_loop

GAINS = ("paper", "cntk", "fairseq")


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


class FilterState(NamedTuple):
    """State of `block_filter`.

    Attributes:
        velocity: D, the model's last step (the paper's Delta), zero at first; equal on
            all workers; float32 also where parameters are of half precision.
    """

    velocity: Params


def block_momentum_from_time_constant(
    time_constant: float,
    *,
    workers: int,
    local_steps: int,
    worker_batch: int | None = None,
    global_batch: int | None = None,
) -> float:
    """Block momentum from a time constant in samples, as CNTK states it.

    ``eta = exp(-block / time_constant)`` with a block of ``workers * local_steps *
    worker_batch`` samples.

    Args:
        time_constant: Samples of all workers together, > 0.
        workers: W > 0.
        local_steps: H > 0.
        worker_batch: b > 0. Exactly one of the two batch sizes is given.
        global_batch: W b > 0.

    Returns:
        eta, in (0, 1).

    Raises:
        UserError: An argument is not a number above 0, or not one batch size is given.

    Example:
        >>> from parsgd.strategies import block_momentum_from_time_constant
        >>> eta = block_momentum_from_time_constant(
        ...     4000.0, workers=4, local_steps=10, worker_batch=32)
        >>> round(eta, 4)
        0.7261

    References:
        ``TimeConstant2Momentum`` in CNTK's ``Source/1BitSGD/BlockMomentumSGD.h``.
    """
    given: dict[str, Any] = {
        "time_constant": time_constant,
        "workers": workers,
        "local_steps": local_steps,
    }
    batches = {"worker_batch": worker_batch, "global_batch": global_batch}
    batches = {name: size for name, size in batches.items() if size is not None}
    if len(batches) != 1:
        raise UserError(
            "block momentum from a time constant needs one batch size, worker_batch or "
            f"global_batch, and got {' and '.join(batches) or 'none'}"
        )
    for name, value in (given | batches).items():
        check_positive(name, value)
    samples = global_batch or workers * (worker_batch or 0)
    return math.exp(-local_steps * samples / time_constant)


def block_filter(
    *,
    eta: float | None = None,
    zeta: float = 1.0,
    nesterov: bool = False,
    gain: str = "paper",
) -> optax.GradientTransformation:
    """The filter of block momentum, as an outer optimizer of `outer_loop`.

    In the notation of `block_momentum` it takes the averaged pseudo-gradient, ``-G``,
    and returns the step from one round's start y to the next one's::

        D <- eta D + zeta G
        classical   step = D
        nesterov    step = eta D + zeta G

    Args:
        eta: Block momentum in [0, 1); None for ``1 - 1/W``.
        zeta: Block learning rate > 0.
        nesterov: Whether the step goes to the look-ahead point.
        gain: ``"paper"``, ``"cntk"`` or ``"fairseq"``, as in `block_momentum`.

    Returns:
        An optax transformation with a `FilterState`.

    Raises:
        UserError: ``eta`` or ``zeta`` out of range, or an unknown ``gain``.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.strategies import block_filter
        >>> outer = block_filter(eta=0.5)
        >>> state = outer.init(jnp.zeros(1))
        >>> for _ in range(3):
        ...     step, state = outer.update(jnp.array([-2.0]), state)
        ...     print(float(step[0]))
        2.0
        3.0
        3.5

    References:
        Chen and Huo, "Scalable Training of Deep Learning Machines by Incremental Block
        Training with Intra-block Parallel Optimization and Blockwise Model-Update
        Filtering", ICASSP 2016.
    """
    check_choice("gain", gain, GAINS)
    check_positive("zeta", zeta)
    if eta is not None and not 0 <= eta < 1:
        raise UserError(f"eta={eta}: block momentum must be in [0, 1)")

    def init(params):
        # A sum of many small pushes, which half precision would round away.
        return FilterState(jax.tree.map(lambda p: _wide(jnp.zeros_like(p)), params))

    def update(updates, state, params=None):
        del params
        workers = comm.world()
        decay = 1 - 1 / workers if eta is None else eta
        scale = zeta * workers * (1 - decay) if gain == "cntk" else zeta

        def filtered(velocity):
            """``eta D + zeta G``; the updates are -G."""
            push = jax.tree.map(lambda d: scale * _wide(d), updates)
            return jax.tree.map(lambda v, p: decay * v - p, velocity, push)

        velocity = filtered(state.velocity)
        if not nesterov:
            step = velocity
        elif gain == "paper":
            step = filtered(velocity)
        else:
            step = jax.tree.map(lambda v: (1 + decay) * v, velocity)
        step = jax.tree.map(lambda s, d: s.astype(d.dtype), step, updates)
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

    A round ("block") starts with all workers at y; after H local steps each is at its
    x. The filter keeps the model's last step D, zero at first (the paper's Delta)::

        G = mean(x) - y
        D <- eta D + zeta G
        model <- model + D
        next round's y: model           classical (CBM)
                        model + eta D   nesterov (NBM)

    What is stored is y, not the model. In the Nesterov form ``model = y - eta D``, so a
    round moves y by ``D + eta (D - old D)``, and since ``D - eta (old D) = zeta G``::

        y <- y + eta D + zeta G

    Both forms are an outer loop on y. Two implementations differ from the paper, and
    are offered as ``gain``; their model is y, with Nesterov momentum too::

        cntk        D <- eta D + (1 - eta) zeta sum_w(x_w - y)
        fairseq     D <- eta D + zeta G
        both        y <- y + D, with nesterov y <- y + (1 + eta) D

    In a steady state a round moves the model by ``zeta G / (1 - eta)``: with the
    default eta the W workers' work counts in full, where plain averaging counts it as
    one worker's. CNTK's D equals the paper's at ``eta = 1 - 1/W`` only. In CNTK and
    fairseq the Nesterov form takes the look-ahead point as the next model, and so moves
    ``1 + eta`` times as far as the classical form; the paper's moves equally far.

    Args:
        optimizer: The local optimizer, any optax transformation.
        eta: Block momentum in [0, 1); None for ``1 - 1/W``. For CNTK's time constant
            see `block_momentum_from_time_constant`.
        zeta: Block learning rate > 0, by which G is multiplied.
        nesterov: Whether each round starts from the look-ahead point.
        gain: Whose step: ``"paper"``, ``"cntk"`` or ``"fairseq"``.
        momentum_policy: What becomes of the local optimizer's state: ``"reset"``
            (CNTK's default), ``"keep"`` or ``"average"``.
        reducer: How the workers' progress is averaged; None for a dense all-reduce.

    Returns:
        A `parsgd.Strategy` with an `OuterState`, which is evaluated at the model.

    Raises:
        UserError: ``optimizer`` or ``reducer`` is not an optax transformation, unknown
            ``gain`` or ``momentum_policy``, ``eta`` outside [0, 1), or ``zeta`` not a
            positive, finite number.

    Example:
        >>> import jax, jax.numpy as jnp, optax, parsgd
        >>> strategy = parsgd.block_momentum(optax.sgd(0.1))  # two workers: eta = 1/2
        >>> y, state = jnp.zeros(2), jax.vmap(strategy.init)(jnp.zeros(2))
        >>> sync = jax.vmap(strategy.sync, axis_name=parsgd.comm.LANES)
        >>> for _ in range(3):
        ...     y, state = sync(y + jnp.array([1.0, 3.0]), state)  # G = 2 in each round
        ...     print(float(y[0]))
        2.0
        5.0
        8.5

    References:
        Chen and Huo, "Scalable Training of Deep Learning Machines by Incremental Block
        Training with Intra-block Parallel Optimization and Blockwise Model-Update
        Filtering", ICASSP 2016.
        ``gain="cntk"``: CNTK, ``Source/1BitSGD/BlockMomentumSGD.h``.
        ``gain="fairseq"``: fairseq, ``fairseq/optim/bmuf.py``.

    Differences from the paper:
        Any local optimizer may be used, and by default its state starts anew in each
        round, as in CNTK. The data order is the run's, not the paper's partition of the
        data into blocks. The paper has no compressing ``reducer``.
    """
    filtered = block_filter(eta=eta, zeta=zeta, nesterov=nesterov, gain=gain)
    average = all_reduce() if reducer is None else reducer
    check_transformation("reducer", average)
    outer = optax.chain(average, filtered)
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
        # model = y - eta D
        decay = 1 - 1 / comm.world() if eta is None else eta
        velocity = state.outer[1].velocity
        back = lambda y, v: (_wide(y) - decay * v).astype(y.dtype)
        return jax.tree.map(back, state.anchor, velocity)

    return loop._replace(sync=sync, readout=readout)
