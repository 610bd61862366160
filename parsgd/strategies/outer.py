"""Outer loops: an optimizer on the progress that all workers made in H local steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd.core import Params, Strategy
from parsgd.errors import UserError, check_positive, check_transformation
from parsgd.reducers import all_reduce
from parsgd.strategies.momentum import check_policy, synchronise


class OuterState(NamedTuple):
    """State of `outer_loop`.

    Attributes:
        anchor: The parameters that the round started from, equal on all workers.
        inner: State of the local optimizer.
        outer: State of the outer transformation.
    """

    anchor: Params
    inner: Any
    outer: Any


def outer_loop(
    inner: optax.GradientTransformation,
    outer: optax.GradientTransformation,
    *,
    momentum_policy: str = "keep",
) -> Strategy:
    """H local steps, then one outer step on the pseudo-gradient.

    In each round, with each worker's gradient g::

        x <- x + inner(g)                                   H times, by each alone
        d = anchor - x,   anchor <- anchor + outer(d)       once, by all
        x <- anchor

    ``d`` plays the part of a gradient: plain averaging is ``outer = chain(all_reduce(),
    optax.sgd(1.0))``, since ``anchor - mean(d) = mean(x)``. With another ``outer`` the
    same loop is FedAvg, FedAdam, SlowMo, DiLoCo, block momentum or, with a compressing
    reducer, any of them compressed.

    Args:
        inner: The local optimizer.
        outer: A reducer and an optimizer for its average, chained; its updates must be
            equal on all workers.
        momentum_policy: What becomes of the local optimizer's state at a round's end:
            ``"keep"``, ``"average"`` or ``"reset"``.

    Returns:
        A `parsgd.Strategy` with an `OuterState`, which is evaluated at the anchor.

    Raises:
        UserError: ``inner`` or ``outer`` is not an optax transformation, or unknown
            ``momentum_policy``.

    Example:
        >>> import jax, jax.numpy as jnp, optax, parsgd
        >>> half = optax.chain(parsgd.all_reduce(), optax.sgd(0.5))
        >>> strategy = parsgd.outer_loop(optax.adamw(1e-3), half)
        >>> state = jax.vmap(strategy.init)(jnp.zeros(2))  # two workers start from 0
        >>> x = jnp.array([1.0, 3.0])  # after their local steps
        >>> jax.vmap(strategy.sync, axis_name=parsgd.comm.LANES)(x, state)[0]
        Array([1., 1.], dtype=float32)

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from
        Decentralized Data", AISTATS 2017 (FedAvg), https://arxiv.org/abs/1602.05629.
        Wang et al., "SlowMo: Improving Communication-Efficient Distributed SGD with
        Slow Momentum", ICLR 2020, https://arxiv.org/abs/1910.00643.
        Reddi et al., "Adaptive Federated Optimization", ICLR 2021 (FedAdam),
        https://arxiv.org/abs/2003.00295.

    Differences from the papers:
        All workers take part in every round, with equal weight; FedAvg draws clients
        and weights them by their examples. SlowMo divides d by the local learning rate,
        which is the same as long as the rate is constant. FedAdam has no bias
        correction, which ``optax.adam`` has, and a larger ``eps``.
    """
    check_policy(momentum_policy)
    check_transformation("inner", inner)
    check_transformation("outer", outer)

    def init(params):
        return OuterState(params, inner.init(params), outer.init(params))

    def local(grads, state, params):
        updates, inner_state = inner.update(grads, state.inner, params)
        params = optax.apply_updates(params, updates)
        return params, state._replace(inner=inner_state)

    def sync(params, state):
        delta = jax.tree.map(jnp.subtract, state.anchor, params)
        updates, outer_state = outer.update(delta, state.outer, state.anchor)
        anchor = optax.apply_updates(state.anchor, updates)
        inner_state = synchronise(momentum_policy, inner, state.inner, anchor)
        return anchor, OuterState(anchor, inner_state, outer_state)

    return Strategy(init, local, sync, readout=lambda params, state: state.anchor)


def diloco(
    optimizer: optax.GradientTransformation,
    *,
    outer_learning_rate: float | Callable[[Any], Any] = 0.7,
    outer_momentum: float = 0.9,
    momentum_policy: str = "keep",
    reducer: optax.GradientTransformation | None = None,
) -> Strategy:
    """DiLoCo: an outer Nesterov step on the average pseudo-gradient.

    Per round, with ``d = mean(anchor - x)``, rate a and momentum m::

        u <- m u + d,   anchor <- anchor - a (m u + d)

    Args:
        optimizer: The local optimizer; AdamW in the paper.
        outer_learning_rate: a > 0; 0.7 in the paper. Or an optax schedule, whose steps
            are rounds.
        outer_momentum: m in [0, 1); 0.9 in the paper.
        momentum_policy: What becomes of the local optimizer's state: ``"keep"`` (the
            paper), ``"average"`` or ``"reset"``.
        reducer: How pseudo-gradients are averaged; None for a dense all-reduce.

    Returns:
        A `parsgd.Strategy` with an `OuterState`, which is evaluated at the anchor.

    Raises:
        UserError: ``optimizer`` or ``reducer`` is not an optax transformation, unknown
            ``momentum_policy``, ``outer_learning_rate`` neither a schedule nor a
            positive, finite number, or ``outer_momentum`` outside [0, 1).

    Example:
        >>> import jax, jax.numpy as jnp, optax, parsgd
        >>> strategy = parsgd.diloco(
        ...     optax.adamw(1e-3), outer_learning_rate=0.5, outer_momentum=0.5)
        >>> state = jax.vmap(strategy.init)(jnp.zeros(2))  # two workers start from 0
        >>> x = jnp.array([-1.0, -3.0])  # after their local steps: d = u = 2
        >>> jax.vmap(strategy.sync, axis_name=parsgd.comm.LANES)(x, state)[0]
        Array([-1.5, -1.5], dtype=float32)

    References:
        Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language
        Models", 2023, https://arxiv.org/abs/2311.08105.

    Differences from the paper:
        The inner optimizer is any ``optimizer``, AdamW in the paper. H, 500 there, is
        the run's number of local steps. With a compressing ``reducer`` pseudo-gradients
        are not sent dense, as they are there.
    """
    if not callable(outer_learning_rate):
        more = ", or a schedule of them"
        check_positive("outer_learning_rate", outer_learning_rate, more)
    if not 0 <= outer_momentum < 1:
        raise UserError(f"outer_momentum={outer_momentum}: must be in [0, 1)")
    nesterov = optax.sgd(outer_learning_rate, outer_momentum, nesterov=True)
    reducer = all_reduce() if reducer is None else reducer
    check_transformation("reducer", reducer)
    outer = optax.chain(reducer, nesterov)
    return outer_loop(optimizer, outer, momentum_policy=momentum_policy)
