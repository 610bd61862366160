"""Methods that send compressed gradients in every step.

The compression is a reducer: `parsgd.compressed_all_reduce` for unbiased codes,
`parsgd.error_feedback` or `parsgd.ef21` for those that are not,
`parsgd.reducers.power_sgd`, and so on. A name stands here where a paper fixes more than
the code.
"""

from typing import Any

import jax
import optax

from parsgd.compressors import one_bit, scaled_sign
from parsgd.core import Algorithm, Phase, Strategy
from parsgd.errors import check_whole
from parsgd.reducers import (
    clip,
    error_feedback,
    idle,
    local_momentum,
    majority_vote,
)
from parsgd.reducers.momentum import has_momentum
from parsgd.strategies.data_parallel import data_parallel


def compressed_sgd(
    optimizer: optax.GradientTransformation,
    *,
    reducer: optax.GradientTransformation,
    start_step: int = 0,
    clip_before: float | None = None,
    clip_after: float | None = None,
) -> Algorithm:
    """An optimizer on gradients that a reducer has averaged, dense at first if wanted.

    Args:
        optimizer: Any optax transformation; sees the reducer's average.
        reducer: How gradients are compressed and averaged.
        start_step: Steps of dense averaging before compression sets in; residuals are
            zero then. Not for a reducer with momentum of its own (`local_momentum`,
            `demo`, `dgc`): the dense steps would be without it.
        clip_before: Largest global norm of each worker's own gradient; None for any.
        clip_after: Largest global norm of the average; None for any.

    Raises:
        ValueError: A negative ``start_step``, or a norm that is not positive; or, from
            ``init``, ``start_step`` with momentum in the reducer.

    Example:
        >>> import optax, parsgd
        >>> strategy = parsgd.compressed_sgd(
        ...     optax.sgd(0.1), reducer=parsgd.error_feedback(parsgd.one_bit()))
    """
    check_whole("start_step", start_step, 0)
    before, after = _clip("clip_before", clip_before), _clip("clip_after", clip_after)
    optimizer = optax.chain(after, optimizer)
    compressed = data_parallel(optimizer, reducer=optax.chain(before, reducer))
    if start_step == 0:
        return compressed
    if clip_before is not None:
        raise ValueError(
            "clip_before with start_step: the dense steps see only the average of the "
            "workers' gradients; use clip_after, or start_step=0"
        )
    waiting = optax.chain(before, idle(reducer))
    dense = data_parallel(optimizer, reducer=waiting)._replace(mean_gradient=True)

    def init(params: Any) -> Any:
        if has_momentum(jax.eval_shape(reducer.init, params)):
            raise ValueError(
                f"start_step={start_step} with a reducer that has momentum: the dense "
                "steps would be without it, and larger or smaller than those that "
                "follow; use start_step=0"
            )
        return dense.init(params)

    return (Phase(0, dense._replace(init=init)), Phase(start_step, compressed))


def one_bit_sgd(
    optimizer: optax.GradientTransformation,
    *,
    levels: str = "column",
    two_sided: bool = False,
    start_step: int = 0,
) -> Algorithm:
    """1-bit SGD: signs with two reconstruction levels, and error feedback.

    Per step and weight matrix, with gradient g and residual e::

        v = g + e,   q = one_bit(v),   e <- v - q,   optimizer on mean(q)

    Args:
        optimizer: Any optax transformation; sees the average of the decoded gradients.
        levels: ``"column"`` (one pair of levels per output unit, as in the paper) or
            ``"leaf"`` (one pair per array).
        two_sided: The paper's exchange: the owner of each stripe of columns quantises
            their average again, with a residual of its own, before it sends it back.
            About 2 (W - 1)/W payloads per worker instead of W - 1.
        start_step: Steps of dense averaging before quantisation sets in; the residual
            is zero then. The paper starts from a model that was trained without
            quantisation for a while.

    References:
        Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014.

    Differences from the paper:
        Without ``two_sided`` every worker gathers the W payloads and averages them
        itself: nothing is lost on the way back.
    """
    reducer = error_feedback(one_bit(levels=levels), two_sided=two_sided)
    return compressed_sgd(optimizer, reducer=reducer, start_step=start_step)


def ef_sign_sgd(optimizer: optax.GradientTransformation) -> Strategy:
    """EF-signSGD: scaled signs of the **step** plus what earlier ones left.

    Per leaf of n entries, with the optimizer's update u (``-lr g`` for plain SGD)::

        p = u + e,   q = |p|_1 / n sign(p),   x <- x + mean(q),   e <- p - q

    Args:
        optimizer: Any optax transformation, applied to the worker's own gradient.

    References:
        Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
        Schemes", ICML 2019.

    Differences from the paper:
        Zero counts as positive, since one bit has two values. One-dimensional leaves
        are averaged as they are.
    """
    return data_parallel(optax.chain(optimizer, error_feedback(scaled_sign())))


def sign_sgd_majority(
    optimizer: optax.GradientTransformation,
    *,
    momentum: float = 0.0,
    tie: str = "positive",
) -> Strategy:
    """SignSGD with majority vote; with ``momentum`` it is signum.

    With the worker's gradient g::

        m <- momentum m + g,   optimizer on sign(sum_w sign(m_w))

    Args:
        optimizer: Applied to the vote, +1 or -1: plain SGD in the paper.
        momentum: Of the worker's own gradient, in [0, 1); 0.9 for the paper's signum.
        tie: See `parsgd.reducers.majority_vote`.

    Raises:
        ValueError: ``momentum`` out of range, or an unknown ``tie``.

    References:
        Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems",
        ICML 2018.
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum}: must be in [0, 1)")
    vote = majority_vote(tie=tie)
    if momentum:
        vote = optax.chain(local_momentum(momentum), vote)
    return data_parallel(optimizer, reducer=vote)


def _clip(name: str, norm: float | None) -> optax.GradientTransformation:
    if norm is None:
        return optax.identity()
    if not norm > 0:
        raise ValueError(f"{name}={norm}: must be positive, or null for any norm")
    return clip(norm)
