"""1-bit Adam: Adam first, then momentum in one bit under a variance that is frozen.

Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's
Convergence Speed", ICML 2021.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.compressors import Compressor, one_bit
from parsgd.compressors.sign import KEEPS_NORM
from parsgd.core import Algorithm, Phase
from parsgd.errors import check_whole
from parsgd.reducers import Exchange, ExchangeState, exchange, paths
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
        b2: Decay of the variance, in [0, 1); at work in the first T steps.
        eps: Added to the root of the variance, > 0.
        warmup_steps: T, steps of dense Adam, 1 or more. The paper takes 15 to 25 % of
            the run: until v is steady.
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
        UserError: ``warmup_steps`` is not a whole number, or ``compressor`` is not a
            `Compressor`; or, from ``init``, ``bucket`` with a code that makes one flat
            array larger.
        ValueError: ``b1``, ``b2``, ``eps`` or ``warmup_steps`` out of range, a code
            that does not shrink its error, or ``two_sided`` with one whose payloads are
            summed; or, in a step, a state that belongs to another model.

    Example:
        >>> from parsgd.strategies import one_bit_adam
        >>> [phase.start for phase in one_bit_adam(1e-3, warmup_steps=100)]
        [0, 100]

    References:
        Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with
        Adam's Convergence Speed", ICML 2021.

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
    check_whole("warmup_steps", warmup_steps, 0)
    if warmup_steps < 1:
        raise ValueError(
            f"one_bit_adam: warmup_steps={warmup_steps} must be 1 or more, for the "
            "variance is not updated afterwards"
        )
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

    def dense(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        mu, nu, count = *moments(updates, state, b1, b2), state.count + 1
        step = direction(mu, nu, count)
        return step, state._replace(count=count, mu=mu, nu=nu)

    def frozen(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        own, _ = moments(updates, state, b1, b2)
        mean, error, inner = average(
            channel, own, state.nu, state.error, state.exchange
        )
        step = direction(mean, state.nu, state.count + 1)
        good = paths.finite(*jax.tree.leaves(mean))
        mu = paths.keep_unless(good, mean, state.mu)
        return step, OneBitAdamState(state.count + 1, mu, state.nu, error, inner)

    def strategy(update: Callable) -> Any:
        transformation = optax.GradientTransformation(init, update)
        descent = optax.scale_by_learning_rate(learning_rate)
        return data_parallel(optax.chain(transformation, descent))

    first = strategy(dense)._replace(mean_gradient=True)
    return (Phase(0, first), Phase(warmup_steps, strategy(frozen)))


def check_adam(name: str, b1: float, b2: float, eps: float) -> None:
    """Refuse decays and eps out of range."""
    for what, value in (("b1", b1), ("b2", b2)):
        if not 0 <= value < 1:
            raise ValueError(f"{name}: {what}={value} must be in [0, 1)")
    if not eps > 0:
        raise ValueError(f"{name}: eps={eps} must be positive")


def adam_channel(name: str, compressor: Compressor | None, **options: Any) -> Exchange:
    """How momenta are averaged; `one_bit` with two levels per leaf where None."""
    code = one_bit(levels="leaf") if compressor is None else compressor
    if isinstance(code, Compressor) and code.name == KEEPS_NORM:
        # The papers' own: not for all arrays, but for momenta, it shrinks its error.
        code = code._replace(contracts=True)
    return exchange(code, feedback=name, **options)


def zeros(params: Any) -> Any:
    """``float32`` zeros in the shape of the parameters."""
    return optax.tree.zeros_like(params, dtype=jnp.float32)


def moments(grads: Any, state: Any, b1: float, b2: float) -> tuple[Any, Any]:
    """Adam's two moving averages after one more gradient."""

    def decayed(decay, power):
        return lambda old, g: decay * old + (1 - decay) * g.astype(jnp.float32) ** power

    mu = jax.tree.map(decayed(b1, 1), state.mu, grads)
    return mu, jax.tree.map(decayed(b2, 2), state.nu, grads)


def average(
    channel: Exchange, tree: Any, nu: Any, error: dict, state: ExchangeState
) -> tuple[Any, dict, ExchangeState]:
    """Compressed average with error feedback of entries whose variance is not zero.

    Args:
        channel: How to compress and average.
        tree: This worker's ``float32`` arrays.
        nu: The variance; where it is 0 the average and the residual are 0 too, and
            no level is a mean of such entries, but for levels per column.
        error: Residuals of the leaves that are compressed, by path.
        state: The exchange's state.

    Returns:
        The average, the residuals and the exchange's state. Leaves whose average is
        not finite keep the last two as they were.
    """
    compressed, raw = channel.split(tree)
    paths.check("residual", error, compressed)
    variance, _ = channel.split(nu)
    live = {path: v > 0 for path, v in variance.items()}
    total = {path: v + error[path] for path, v in compressed.items()}
    mean, sent, good, new = channel.average(total, state, live)
    left = {}
    for path, v in total.items():
        rest = jnp.where(live[path], v - sent[path], 0.0)
        left[path] = jnp.where(good[path], rest, error[path])
    out = channel.join(mean, comm.mean(raw), tree)
    out = jax.tree.map(lambda m, v: jnp.where(v > 0, m, 0.0), out, nu)
    return out, left, new
