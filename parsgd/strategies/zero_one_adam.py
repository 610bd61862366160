"""0/1 Adam: ever rarer updates of the variance, and steps that send nothing.

Lu, Li, Zhang, De Sa and He, "Maximizing Communication Efficiency for Large-scale
Training via 0/1 Adam", ICLR 2023, https://arxiv.org/abs/2202.06009.

The functions in `zero_one_adam` follow Algorithm 1. Its sets of steps, T_u and T_v,
become rounds: what the algorithm does at the last step of an interval is a ``sync``.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.compressors import Compressor
from parsgd.core import Algorithm, Phase, Strategy
from parsgd.errors import UserError, check_whole
from parsgd.reducers import ExchangeState, paths
from parsgd.strategies.adam import adam_channel, average, check_adam, moments, zeros


class ZeroOneAdamState(NamedTuple):
    """State of `zero_one_adam`; arrays are ``float32``.

    Attributes:
        count: Steps done, int32 scalar.
        mu: m, equal on all workers between rounds.
        nu: v, equal on all workers.
        anchor: The parameters that the round started from.
        u: The sum of ``lr m`` since the last synchronisation. In phases that update v,
            where nothing is left to add up, this worker's last gradient, which the
            round's end averages. 0 between rounds.
        rates: Sum of the rates in ``u``, float32 scalar.
        error: Residuals, each worker's own, by path of what is compressed.
        exchange: State of the exchange.
    """

    count: jax.Array
    mu: Any
    nu: Any
    anchor: Any
    u: Any
    rates: jax.Array
    error: dict[str, jax.Array]
    exchange: ExchangeState


def zero_one_adam(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    kappa: int = 16,
    freeze_step: int,
    double_steps: int,
    max_interval: int = 16,
    compressor: Compressor | None = None,
    two_sided: bool = True,
    bucket: bool = False,
    seed: int = 0,
) -> Algorithm:
    """0/1 Adam: Adam in one bit, with ever rarer variance updates and messages.

    Each worker has a gradient g, the rate lr, momentum m, variance v and u, the sum of
    ``lr m`` since t', the last step of T_u. In each step::

        m <- b1 m + (1 - b1) g
        x <- x - lr m / (sqrt(v) + eps),   u <- u + lr m
        at steps of T_u:   U = one-bit average of u,   u <- 0
                           m <- U / (sum of lr since t')
                           x <- x_t' - U / (sqrt(v) + eps)
        at steps of T_v:   v <- b2 v + (1 - b2) mean(g)^2

    T_v: the first ``kappa`` steps, then kappa intervals of two steps, kappa of four and
    so on, until ``freeze_step``. T_u: every step until then; afterwards every step,
    every second, every fourth, ..., the interval doubling every ``double_steps`` steps
    up to ``max_interval``. Each interval is a phase: until ``freeze_step`` its rounds
    are as long as the intervals of T_v, and from there on as those of T_u.

    Args:
        learning_rate: lr: a number or an optax schedule.
        b1: Decay of the momentum, in [0, 1).
        b2: Decay of the variance, in [0, 1).
        eps: Added to the root of the variance, > 0.
        kappa: Variance updates before their interval doubles, 1 or more; 16 in the
            paper.
        freeze_step: Step from which the variance is fixed and workers may step alone,
            1 or more. The paper: the end of the learning rate's warm-up.
        double_steps: Steps until the interval between messages doubles, 1 or more. The
            paper: those in which the learning rate halves.
        max_interval: Longest interval, a power of two; 16 in the paper.
        compressor: The one-bit code, which must shrink its error; None for `one_bit`
            with two levels per leaf, ``scaled_sign(norm="l2")`` for the paper's.
        two_sided: As in `one_bit_adam`.
        bucket: All leaves in one message.
        seed: Seed of what a stochastic code draws.

    Returns:
        Phases: dense, one for each interval of T_v above 1, one for each of T_u. They
        set the local steps themselves.

    Raises:
        UserError: A number of steps is not a whole number of 1 or more, ``b1``, ``b2``
            or ``eps`` is out of range, ``max_interval`` is not a power of two, or
            ``compressor`` is not a `Compressor`, does not shrink its error, or with
            ``two_sided`` has payloads that are summed; or, from ``init``, ``bucket``
            with one that makes one flat array larger.
        ValueError: In a step, a state that belongs to another model.

    Example:
        >>> from parsgd.strategies import zero_one_adam
        >>> phases = zero_one_adam(
        ...     1e-3, kappa=4, freeze_step=20, double_steps=10, max_interval=4)
        >>> [(phase.start, phase.local_steps) for phase in phases]
        [(0, 1), (4, 2), (12, 4), (20, 1), (30, 2), (40, 4)]

    References:
        Lu, Li, Zhang, De Sa and He, "Maximizing Communication Efficiency for
        Large-scale Training via 0/1 Adam", ICLR 2023, https://arxiv.org/abs/2202.06009.

    Differences from the paper:
        In the first kappa steps, which all update the variance, m takes the mean
        gradient, which is sent for the variance in any case (as in the paper's
        published code), and v is updated before it is used: the paper's v is 0 in its
        first step. Later updates come after the step, as in the paper; a phase that
        ends within an interval ends with one.
        ``sqrt(v) + eps`` for the paper's ``sqrt(v + eps)``, as its code has it.
        Parameters whose variance is 0 are not moved, and codes other than the paper's
        ``norm2/sqrt(d) sign`` may be used: see `one_bit_adam`. If all rates of an
        interval are 0 the momentum restarts from 0.
    """
    check_adam("zero_one_adam", b1, b2, eps)
    for name, value in (
        ("kappa", kappa),
        ("freeze_step", freeze_step),
        ("double_steps", double_steps),
        ("max_interval", max_interval),
    ):
        check_whole(name, value)
    if max_interval & (max_interval - 1):
        raise UserError(
            f"zero_one_adam: max_interval={max_interval} must be a power of two, since "
            "intervals double"
        )
    channel = adam_channel(
        "zero_one_adam", compressor, two_sided=two_sided, bucket=bucket, seed=seed
    )

    def init(params: Any) -> Any:
        mu = zeros(params)
        return ZeroOneAdamState(
            count=jnp.int32(0),
            mu=mu,
            nu=zeros(params),
            anchor=params,
            u=zeros(params),
            rates=jnp.float32(0),
            error=channel.zeros(mu),
            exchange=channel.init(mu),
        )

    def rate(state) -> jax.Array:
        lr = learning_rate(state.count) if callable(learning_rate) else learning_rate
        return jnp.asarray(lr, jnp.float32)

    def scaled(factor, tree) -> Any:
        return jax.tree.map(lambda x: factor * x, tree)

    def moved(params, u, nu) -> Any:
        """``x - u / (sqrt(v) + eps)``; parameters whose variance is 0 stay."""
        step = jax.tree.map(
            lambda u, v: jnp.where(v > 0, -u / (jnp.sqrt(v) + eps), 0.0), u, nu
        )
        return optax.apply_updates(params, step)

    def synchronised(start, u, rates, state, fallback) -> tuple:
        """A step of T_u: ``m <- U / rates``, and x moved from ``start`` by U.

        ``fallback`` becomes m where U, the one-bit average of u, is not finite.
        """
        mean, error, exchanged = average(
            channel, u, state.nu, state.error, state.exchange
        )
        share = jnp.where(rates > 0, 1 / jnp.where(rates > 0, rates, 1.0), 0.0)
        good = paths.finite(*jax.tree.leaves(mean))
        mu = optax.tree.where(good, scaled(share, mean), fallback)
        state = state._replace(mu=mu, error=error, exchange=exchanged)
        return moved(start, mean, state.nu), state

    def restart(params, state) -> tuple:
        """The next round starts from here: ``t' <- t,  u <- 0``."""
        state = state._replace(anchor=params, u=zeros(state.nu), rates=jnp.float32(0))
        return params, state

    # The first kappa steps: dense, and all of T_u and T_v.

    def warmup_step(grads, state, params) -> tuple:
        mu, nu = moments(grads, state, b1, b2)
        params = moved(params, scaled(rate(state), mu), nu)
        return params, state._replace(count=state.count + 1, mu=mu, nu=nu)

    # Until freeze_step: every step is one of T_u, and each round ends with one of T_v.

    def compressed_step(grads, state, params) -> tuple:
        mu, _ = moments(grads, state, b1, b2)
        lr = rate(state)
        params, state = synchronised(params, scaled(lr, mu), lr, state, state.mu)
        last = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        return params, state._replace(count=state.count + 1, u=last)

    def sync_variance(params, state) -> tuple:
        grads = comm.mean(state.u)
        _, nu = moments(grads, state, b1, b2)
        return restart(params, state._replace(nu=nu))

    # From freeze_step on: workers step alone, and each round ends with one of T_u.

    def local_step(grads, state, params) -> tuple:
        mu, _ = moments(grads, state, b1, b2)
        lr = rate(state)
        step = scaled(lr, mu)
        state = state._replace(
            count=state.count + 1,
            mu=mu,
            u=jax.tree.map(jnp.add, state.u, step),
            rates=state.rates + lr,
        )
        return moved(params, step, state.nu), state

    def sync_momentum(params, state) -> tuple:
        del params  # each worker's own; the common ones are found from the anchor
        # Where the average is not finite no common momentum is left but zero.
        nothing = zeros(state.nu)
        params, state = synchronised(state.anchor, state.u, state.rates, state, nothing)
        return restart(params, state)

    warmup = Strategy(init, warmup_step, restart, mean_gradient=True)
    variance_updates = Strategy(init, compressed_step, sync_variance)
    local_steps = Strategy(init, local_step, sync_momentum)
    phases = [Phase(0, warmup, 1)]
    interval = 2
    while kappa * (interval - 1) < freeze_step:
        phases.append(Phase(kappa * (interval - 1), variance_updates, interval))
        interval *= 2
    for power in range(int(max_interval).bit_length()):
        start = freeze_step + power * double_steps
        phases.append(Phase(start, local_steps, 1 << power))
    return tuple(phases)
