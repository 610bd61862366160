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
from parsgd.reducers import error_feedback, local_momentum, majority_vote
from parsgd.reducers.dense_start import dense, idle, is_chain, works_dense
from parsgd.reducers.momentum import has_momentum
from parsgd.strategies.data_parallel import data_parallel


def compressed_sgd(
    optimizer: optax.GradientTransformation,
    *,
    reducer: optax.GradientTransformation,
    start_step: int = 0,
    clip_before: float | None = None,
    clip_after: float | None = None,
    skip_nonfinite: bool = False,
) -> Algorithm:
    """An optimizer on gradients that a reducer has averaged, dense at first if wanted.

    Args:
        optimizer: Any optax transformation; sees the reducer's average.
        reducer: How gradients are compressed and averaged.
        start_step: Steps of dense averaging before compression sets in; residuals are
            zero then. What stands before the compression in a chain (`local_momentum`,
            `clip`) works from the first step, and EF21 starts from the last dense
            gradient, averaged in float32. Not for reducers that are momentum themselves
            (`demo`, `dgc`), which have no dense form.
        clip_before: Largest global norm of each worker's own gradient; None for any.
        clip_after: Largest global norm of the average; None for any.
        skip_nonfinite: Whether all workers stand still in a step in which the gradient
            or update of one is not finite; residuals stay as they were in any case.

    Raises:
        ValueError: A negative ``start_step``, or a norm that is not positive; or, from
            ``init``, ``start_step`` with a reducer that has no dense form.

    Example:
        >>> import optax, parsgd
        >>> strategy = parsgd.compressed_sgd(
        ...     optax.sgd(0.1), reducer=parsgd.error_feedback(parsgd.one_bit()))
    """
    check_whole("start_step", start_step, 0)
    compressed = data_parallel(
        optimizer,
        reducer=reducer,
        clip_before=clip_before,
        clip_after=clip_after,
        skip_nonfinite=skip_nonfinite,
    )
    if start_step == 0:
        return compressed
    try:
        working = works_dense(reducer)
    except Exception:  # it only takes its own model's parameters: see init
        working = True
    # To clip, to tell who is at fault or for momentum, each must see its own gradient.
    own = working or skip_nonfinite or clip_before is not None
    first = data_parallel(
        optimizer,
        reducer=dense(reducer) if working else idle(reducer, average=own),
        clip_before=clip_before,
        clip_after=clip_after,
        skip_nonfinite=skip_nonfinite,
    )._replace(mean_gradient=not own)

    def init(params: Any) -> Any:
        state = jax.eval_shape(reducer.init, params)
        more = has_momentum(state) or is_chain(state)
        if (working or more) and not works_dense(reducer, params):
            raise ValueError(
                f"start_step={start_step} with a reducer that does more than compress "
                "(momentum, or a chain) and takes no dense=True: the dense steps would "
                "be without all of it; use start_step=0"
            )
        return first.init(params)

    return (Phase(0, first._replace(init=init)), Phase(start_step, compressed))


def one_bit_sgd(
    optimizer: optax.GradientTransformation,
    *,
    levels: str = "column",
    two_sided: bool = False,
    bucket: bool = False,
    min_size: int = 0,
    start_step: int = 0,
    clip_before: float | None = None,
    clip_after: float | None = None,
    skip_nonfinite: bool = False,
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
        bucket: Send all arrays as one, which needs ``levels="leaf"``.
        min_size: Arrays of fewer entries are averaged as they are.
        start_step: Steps of dense averaging before quantisation sets in; the residual
            is zero then. The paper starts from a model that was trained without
            quantisation for a while.
        clip_before: See `compressed_sgd`, and so for the next two.
        clip_after: Largest norm of the average.
        skip_nonfinite: Whether to stand still where a gradient is not finite.

    References:
        Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014.

    Differences from the paper:
        Without ``two_sided`` every worker gathers the W payloads and averages them
        itself: nothing is lost on the way back.
    """
    reducer = error_feedback(
        one_bit(levels=levels), two_sided=two_sided, bucket=bucket, min_size=min_size
    )
    return compressed_sgd(
        optimizer,
        reducer=reducer,
        start_step=start_step,
        clip_before=clip_before,
        clip_after=clip_after,
        skip_nonfinite=skip_nonfinite,
    )


def ef_sign_sgd(
    optimizer: optax.GradientTransformation,
    *,
    zero: str = "positive",
    bucket: bool = False,
    min_size: int = 0,
    skip_nonfinite: bool = False,
) -> Strategy:
    """EF-signSGD: scaled signs of the **step** plus what earlier ones left.

    Per leaf of n entries, with the optimizer's update u (``-lr g`` for plain SGD)::

        p = u + e,   q = |p|_1 / n sign(p),   x <- x + mean(q),   e <- p - q

    Args:
        optimizer: Any optax transformation, applied to the worker's own gradient.
        zero: The sign of zero, see `parsgd.compressors.scaled_sign`.
        bucket: Send all arrays as one, with one scale.
        min_size: Arrays of fewer entries are averaged as they are.
        skip_nonfinite: Whether all workers stand still in a step in which the gradient
            or update of one is not finite.

    References:
        Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
        Schemes", ICML 2019.

    Differences from the paper:
        Zero counts as positive, since one bit has two values. One-dimensional leaves
        are averaged as they are.
    """
    feedback = error_feedback(scaled_sign(zero=zero), bucket=bucket, min_size=min_size)
    chain = optax.chain(optimizer, feedback)
    return data_parallel(chain, skip_nonfinite=skip_nonfinite)


def sign_sgd_majority(
    optimizer: optax.GradientTransformation,
    *,
    momentum: float = 0.0,
    tie: str = "positive",
    zero: str = "positive",
) -> Strategy:
    """SignSGD with majority vote; with ``momentum`` it is signum.

    With the worker's gradient g::

        m <- momentum m + g,   optimizer on sign(sum_w sign(m_w))

    Args:
        optimizer: Applied to the vote, +1 or -1: plain SGD in the paper.
        momentum: Of the worker's own gradient, in [0, 1); 0.9 for the paper's signum.
        tie: See `parsgd.reducers.majority_vote`.
        zero: See there too.

    Raises:
        ValueError: ``momentum`` out of range, or an unknown ``tie`` or ``zero``.

    References:
        Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems",
        ICML 2018.
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum}: must be in [0, 1)")
    vote = majority_vote(tie=tie, zero=zero)
    if momentum:
        vote = optax.chain(local_momentum(momentum), vote)
    return data_parallel(optimizer, reducer=vote)
