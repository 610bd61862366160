"""Methods that communicate in every step: a reducer and an optimizer, chained."""

import jax
import jax.numpy as jnp
import optax

from parsgd.compressors import one_bit
from parsgd.core import Algorithm, Phase, Strategy
from parsgd.reducers import error_feedback, idle


def data_parallel(
    optimizer: optax.GradientTransformation,
    *,
    reducer: optax.GradientTransformation | None = None,
) -> Strategy:
    """An optimizer that communicates: every worker applies it, in every step.

    With a worker's gradient g, optimizer state s and parameters x::

        u, s = optimizer(reducer(g), s, x),   x <- x + u

    Args:
        optimizer: Any optax transformation.
        reducer: What is done with the worker's own gradient first, such as
            ``error_feedback(one_bit())``; None for nothing. The same as
            ``optax.chain(reducer, optimizer)``.

    Example:
        >>> import optax, parsgd
        >>> reducer = parsgd.error_feedback(parsgd.one_bit())
        >>> strategy = parsgd.data_parallel(optax.sgd(0.1), reducer=reducer)
    """
    if reducer is not None:
        optimizer = optax.chain(reducer, optimizer)

    def init(params):
        # Some transformations keep the parameters they are given.
        return optimizer.init(jax.tree.map(jnp.copy, params))

    def local(grads, state, params):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return Strategy(init, local)


def single(optimizer: optax.GradientTransformation) -> Strategy:
    """One worker and its optimizer: the reference. With more workers nothing is sent.

    Args:
        optimizer: Any optax transformation.
    """
    return data_parallel(optimizer)


def sync_sgd(optimizer: optax.GradientTransformation) -> Strategy:
    """Synchronous SGD: ``g <- mean(g)``, then the optimizer, in every step.

    Args:
        optimizer: Any optax transformation; sees the average gradient.
    """
    return data_parallel(optimizer)._replace(mean_gradient=True)


def one_bit_sgd(
    optimizer: optax.GradientTransformation,
    *,
    levels: str = "column",
    start_step: int = 0,
) -> Algorithm:
    """1-bit SGD: signs with two reconstruction levels, and error feedback.

    Per step and weight matrix, with gradient g and residual e::

        v = g + e,   q = one_bit(v),   e <- v - q,   optimizer on mean(q)

    Args:
        optimizer: Any optax transformation; sees the average of the decoded gradients.
        levels: ``"column"`` (one pair of levels per output unit, as in the paper) or
            ``"leaf"`` (one pair per array).
        start_step: Steps of dense averaging before quantisation sets in; the residual
            is zero then. The paper starts from a model that was trained without
            quantisation for a while.

    References:
        Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014.

    Differences from the paper:
        The paper's owner of each stripe quantises the aggregate again before it sends
        it back. Here every worker gathers the W payloads and averages them itself:
        nothing is lost on the way back, and (W-1)/8 bytes per entry are sent.
    """
    reducer = error_feedback(one_bit(levels=levels))
    quantised = data_parallel(optimizer, reducer=reducer)
    if start_step < 0:
        raise ValueError(f"start_step={start_step}: must be 0 or more")
    if start_step == 0:
        return quantised
    dense = data_parallel(optimizer, reducer=idle(reducer))
    return (Phase(0, dense._replace(mean_gradient=True)), Phase(start_step, quantised))
