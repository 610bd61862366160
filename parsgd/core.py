"""What an algorithm must provide, and the round that runs it.

A parallel SGD algorithm is what **one worker** does. With parameters x, strategy state
s and H local steps a round is::

    for h in 1..H:   g = gradient of this worker's batch at x
                     x, s = local(g, s, x)
    x, s = sync(x, s)

and the model that is evaluated and returned to the user is ``readout(x, s)``. ``local``
is the inner loop of a paper's algorithm box and ``sync`` the outer one; both may call
`parsgd.comm`. There is no worker axis inside: a placement adds it. H is a shape (the
leading axis of the batches), not a field, so it may change between rounds.

A new algorithm in full, the elastic pull of every worker towards the mean::

    >>> import jax, optax
    >>> from parsgd import comm
    >>> from parsgd.core import Strategy
    >>> def soft_averaging(optimizer, *, pull=0.5):
    ...     def local(grads, state, params):
    ...         updates, state = optimizer.update(grads, state, params)
    ...         return optax.apply_updates(params, updates), state
    ...     def sync(params, state):
    ...         mean = comm.mean(params)
    ...         move = lambda x, m: (1 - pull) * x + pull * m
    ...         return jax.tree.map(move, params, mean), state
    ...     return Strategy(optimizer.init, local, sync)
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from parsgd import comm
from parsgd.errors import UserError, check_whole
from parsgd.gradient import (
    BatchUnion,
    Grads,
    Loss,
    Params,
    State,
    gradient,
    mean_gradient,
)
from parsgd.lanes import in_turn, together


def no_sync(params: Params, state: State) -> tuple[Params, State]:
    """Do nothing at the end of a round: all that the algorithm does is in its steps."""
    return params, state


def mean_readout(params: Params, state: State) -> Params:
    """The average of the workers' parameters."""
    del state
    return comm.mean(params)


class Strategy(NamedTuple):
    """An algorithm, as one worker sees it: four pure functions and a flag.

    Attributes:
        init: ``(params) -> state``. May call ``comm.rank()``.
        local: ``(grads, state, params) -> (params, state)``, every step.
        sync: ``(params, state) -> (params, state)``, at the end of each round.
        readout: ``(params, state) -> params``, equal on all workers.
        mean_gradient: Whether ``local`` gets the average of all workers' gradients
            instead of this worker's own. Then workers that share a device and their
            parameters take one gradient of their mean loss, which is faster than
            averaging a gradient of each.
    """

    init: Callable[[Params], State]
    local: Callable[[Grads, State, Params], tuple[Params, State]]
    sync: Callable[[Params, State], tuple[Params, State]] = no_sync
    readout: Callable[[Params, State], Params] = mean_readout
    mean_gradient: bool = False


class Phase(NamedTuple):
    """A strategy that takes over at a step; all phases of a run share one state.

    What changes during a run (a dense start before compression, one local step before
    many) changes between rounds, so each phase is its own compiled program and costs
    nothing at run time.

    Attributes:
        start: Optimizer step of each worker at which the phase begins.
        strategy: What runs from there on.
        local_steps: H in this phase; None for the run's own.
    """

    start: int
    strategy: Strategy
    local_steps: int | None = None


Algorithm: TypeAlias = Strategy | tuple[Phase, ...]


def phases(algorithm: Algorithm) -> tuple[Phase, ...]:
    """The phases of an algorithm, in order of their start.

    Args:
        algorithm: A `Strategy`, a `Phase`, or several phases in any order.

    Returns:
        The phases; one that starts at 0 if ``algorithm`` is a single strategy.

    Raises:
        UserError: ``algorithm`` is neither a `Strategy` nor made of phases, no phase
            starts at step 0, two start at the same step, or a ``start`` or
            ``local_steps`` is not a whole number in its range.

    Example:
        >>> import optax, parsgd
        >>> sgd = optax.sgd(0.1)
        >>> late = Phase(50, parsgd.local_sgd(sgd))
        >>> early = Phase(0, parsgd.sync_sgd(sgd))
        >>> [phase.start for phase in phases((late, early))]
        [0, 50]
    """
    if isinstance(algorithm, Strategy):
        return (Phase(0, algorithm),)
    if isinstance(algorithm, Phase):
        algorithm = (algorithm,)
    if not isinstance(algorithm, tuple | list) or not all(
        isinstance(phase, Phase) for phase in algorithm
    ):
        raise UserError(
            f"strategy is a {type(algorithm).__name__}: give a Strategy, such as "
            "parsgd.sync_sgd(optimizer) makes, or a tuple of Phases"
        )
    for phase in algorithm:
        check_whole("a phase's start", phase.start, 0)
        if phase.local_steps is not None:
            check_whole("a phase's local_steps", phase.local_steps)
    ordered = tuple(sorted(map(_plain, algorithm), key=lambda phase: phase.start))
    starts = [phase.start for phase in ordered]
    if not starts or starts[0] != 0 or len({*starts}) < len(starts):
        raise UserError(f"phases must start at 0 and at different steps, got {starts}")
    return ordered


def _plain(phase: Phase) -> Phase:
    """With numbers of Python, where NumPy's were given."""
    steps = None if phase.local_steps is None else int(phase.local_steps)
    return phase._replace(start=int(phase.start), local_steps=steps)


class TrainState(NamedTuple):
    """Everything that training carries from step to step, for one worker.

    Attributes:
        step: Optimizer steps done, int32 scalar.
        key: Random key of the run; fold in the step, and the rank where workers must
            differ.
        params: The worker's parameters.
        model: Other variables of the model, such as batch statistics.
        strategy: The algorithm's own state.
    """

    step: jax.Array
    key: jax.Array
    params: Params
    model: State
    strategy: State


def init_state(
    strategy: Strategy, params: Params, model: State, key: jax.Array
) -> TrainState:
    """A worker's state at step 0.

    All arrays are copies: they will be donated, so none may be the caller's, and no two
    may share a buffer.
    """
    copy = functools.partial(jax.tree.map, jnp.copy)
    own = copy(strategy.init(params))
    return TrainState(jnp.int32(0), key, copy(params), copy(model), own)


def spread(params: Params) -> jax.Array:
    """The workers' relative distance to their mean, also called consensus distance.

    With parameters x_w of W workers and their mean m::

        spread = sqrt(1/W sum_w |x_w - m|^2) / |m|

    over all floating-point leaves, in float32; equal on all workers.
    """

    def squares(tree):
        leaves = [
            x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)
        ]
        return sum(jnp.sum(jnp.square(x.astype(jnp.float32))) for x in leaves)

    center = comm.mean(params)
    distance = comm.mean(squares(jax.tree.map(jnp.subtract, params, center)))
    return jnp.sqrt(distance / jnp.maximum(squares(center), 1e-30))


def _unspoilt(new: State, old: State) -> State:
    """The model's new state, or the old one if a number in it is no longer finite.

    A step with a NaN in its gradient can be skipped, which leaves the parameters as
    they were. But its forward pass has already put the NaN into moving averages such as
    batch statistics, which would keep it for good. So if any floating-point entry that
    was finite no longer is, all floating-point leaves stay as they were; others, such
    as counts, go on.
    """
    good = [
        (jnp.isfinite(x) | ~jnp.isfinite(before)).all()  # a mask of -inf stays one
        for x, before in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    if not good:
        return new
    all_good = jnp.stack(good).all()

    def kept(a, b):
        moves = jnp.issubdtype(a.dtype, jnp.floating)
        return jnp.where(all_good, a, b) if moves else a

    return jax.tree.map(kept, new, old)


def run_round(
    strategy: Strategy,
    loss: Loss,
    state: TrainState,
    batch: Callable[[Any, Any], Any],
    data: Any,
    indices: Any,
    *,
    micro_batches: int = 1,
    look: Callable[[Params], Any] | None = None,
    union: BatchUnion = "",
    lanes: Callable[[Callable], Callable] = together,
    gradients_in_turn: bool = False,
) -> tuple[TrainState, jax.Array, Any]:
    """One round of one worker: a scan over the local steps, then ``sync``.

    Args:
        strategy: The algorithm.
        loss: ``(params, model, batch, key) -> (scalar, model)``.
        state: The worker's state.
        batch: ``(data, index) -> batch`` of one step.
        data: The examples.
        indices: Pytree with leading axis H: what to read in each local step.
        micro_batches: Parts that each batch is split into.
        look: What to return of the parameters before ``sync``.
        union: How workers on one device may take their batches as one, see
            `mean_gradient`.
        lanes: How lanes run the local steps, as a transformation of one worker's:
            `parsgd.lanes.together` or `parsgd.lanes.in_turn`.
        gradients_in_turn: Whether lanes that run together take their gradients one
            after the other.

    Returns:
        The new state, the losses ``[H]``, and what ``look`` returns, or None.
    """
    if strategy.mean_gradient:
        take = functools.partial(
            mean_gradient,
            loss,
            micro_batches=micro_batches,
            union=union,
            in_turn=gradients_in_turn,
        )
    else:
        take = functools.partial(gradient, loss, micro_batches=micro_batches)
        take = in_turn(take) if gradients_in_turn else take

    def local_steps(state, rank, data, indices):
        def step(state, index):
            key = jax.random.fold_in(state.key, state.step)
            value, model, grads = take(
                state.params,
                state.model,
                batch(data, index),
                jax.random.fold_in(key, rank),
            )
            model = _unspoilt(model, state.model)
            params, inner = strategy.local(grads, state.strategy, state.params)
            return TrainState(state.step + 1, state.key, params, model, inner), value

        return lax.scan(step, state, indices)

    state, losses = lanes(local_steps)(state, comm.rank(), data, indices)
    seen = look(state.params) if look else None
    params, inner = strategy.sync(state.params, state.strategy)
    return state._replace(params=params, strategy=inner), losses, seen
