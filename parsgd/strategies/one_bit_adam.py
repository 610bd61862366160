"""1-bit Adam: Adam first, then momentum in one bit under a frozen variance.

Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's
Convergence Speed", ICML 2021, https://arxiv.org/abs/2102.02888.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd.compressors import Compressor
from parsgd.core import Algorithm, Phase
from parsgd.errors import check_whole
from parsgd.reducers import ExchangeState, paths
from parsgd.strategies.adam import adam_channel, average, check_adam, moments, zeros
from parsgd.strategies.data_parallel import data_parallel


class OneBitAdamState(NamedTuple):
    """State of `one_bit_adam`; arrays are ``float32``.

    Attributes:
        count: Steps done, int32 scalar.
        mu: m, equal on all workers.
        nu: v, equal on all workers.
        error: e, each worker's own, by path of the leaves that are compressed.
        exchange: State of the exchange.
    """

    count: jax.Array
    mu: Any
    nu: Any
    error: dict[str, jax.Array]
    exchange: ExchangeState


def one_bit_adam(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    warmup_steps: int,
    bias_correction: bool = False,
    compressor: Compressor | None = None,
    two_sided: bool = True,
    bucket: bool = False,
    seed: int = 0,
) -> Algorithm:
    """1-bit Adam: T steps of Adam, then momentum in one bit under a fixed variance.

    For T steps, with the mean gradient g::

        m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2
        x <- x - lr m / (sqrt(v) + eps)

    and from then on, with each worker's own gradient g and residual e, v as it is::

        p = b1 m + (1 - b1) g + e
        m <- average of the workers' C(p), encoded again by the owner of each stripe
        e <- p - C(p),   x <- x - lr m / (sqrt(v) + eps)

    With v fixed a step is linear in the momentum, which is what error feedback needs.

    Args:
        learning_rate: lr: a number or an optax schedule.
        b1: Decay of the momentum, in [0, 1).
        b2: Decay of the variance, in [0, 1); used in the first T steps only.
        eps: Added to the root of the variance, > 0.
        warmup_steps: T, steps of dense Adam, 1 or more. The paper takes 15 to 25 % of
            the run, until v is steady.
        bias_correction: Divide m by ``1 - b1^t``, and v by ``1 - b2^t`` up to T, as
            `optax.adam` does. The paper and its code do not.
        compressor: C, which must shrink its error; None for `one_bit` with two levels
            per leaf, ``scaled_sign(norm="l2")`` for the paper's.
        two_sided: The paper's exchange, which encodes the average again. False gathers
            the workers' payloads: nothing lost on the way back, W/2 times the bytes.
        bucket: All leaves in one message.
        seed: Seed of what a stochastic code draws.

    Returns:
        Two phases: dense Adam, and from step T on its compressed form.

    Raises:
        UserError: ``warmup_steps`` is not a whole number of 1 or more, ``b1``, ``b2``
            or ``eps`` is out of range, or ``compressor`` is not a `Compressor`, does
            not shrink its error, or with ``two_sided`` has payloads that are summed;
            or, from ``init``, ``bucket`` with one that makes one flat array larger.
        ValueError: In a step, a state that belongs to another model.

    Example:
        >>> from parsgd.strategies import one_bit_adam
        >>> [phase.start for phase in one_bit_adam(1e-3, warmup_steps=100)]
        [0, 100]

    References:
        Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with
        Adam's Convergence Speed", ICML 2021, https://arxiv.org/abs/2102.02888.

    Differences from the paper:
        The paper's code is ``norm2(p)/sqrt(d) sign(p)``, which keeps the norm:
        ``scaled_sign(norm="l2")``. `one_bit` decodes to the mean of each sign, the
        least error of any two levels, with a smaller norm.
        A parameter without a gradient in all T steps has v = 0, and a sign is never
        zero: divided by eps it would take the parameter anywhere. Such parameters stay
        where they are, for good. (The paper's code wants a mask from the user.)
        One-dimensional leaves, and those that would not shrink, are averaged densely.
    """
    check_adam("one_bit_adam", b1, b2, eps)
    # At least one: the variance is not updated afterwards.
    check_whole("warmup_steps", warmup_steps)
    channel = adam_channel(
        "one_bit_adam", compressor, two_sided=two_sided, bucket=bucket, seed=seed
    )

    def init(params: Any) -> Any:
        mu, nu = zeros(params), zeros(params)
        return OneBitAdamState(
            jnp.int32(0), mu, nu, channel.zeros(mu), channel.init(mu)
        )

    def direction(mu: Any, nu: Any, count: jax.Array) -> Any:
        first, second = 1.0, 1.0
        if bias_correction:
            first = 1 - b1**count
            second = 1 - b2 ** jnp.minimum(count, warmup_steps)
        return jax.tree.map(
            lambda m, v: (m / first) / (jnp.sqrt(v / second) + eps), mu, nu
        )

    def warmup_step(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        mu, nu = moments(updates, state, b1, b2)
        count = state.count + 1
        step = direction(mu, nu, count)
        return step, state._replace(count=count, mu=mu, nu=nu)

    def compressed_step(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        own, _ = moments(updates, state, b1, b2)  # v stays as it is
        mean, error, exchanged = average(
            channel, own, state.nu, state.error, state.exchange
        )
        count = state.count + 1
        step = direction(mean, state.nu, count)
        good = paths.finite(*jax.tree.leaves(mean))
        mu = optax.tree.where(good, mean, state.mu)
        return step, OneBitAdamState(count, mu, state.nu, error, exchanged)

    def strategy(update: Callable) -> Any:
        transformation = optax.GradientTransformation(init, update)
        descent = optax.scale_by_learning_rate(learning_rate)
        return data_parallel(optax.chain(transformation, descent))

    warmup = strategy(warmup_step)._replace(mean_gradient=True)
    return (Phase(0, warmup), Phase(warmup_steps, strategy(compressed_step)))
