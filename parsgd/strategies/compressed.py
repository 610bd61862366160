"""Methods that send compressed gradients in every step.

The compression is a reducer: `parsgd.compressed_all_reduce` for unbiased codes,
`parsgd.error_feedback` or `parsgd.ef21` for biased ones, `parsgd.reducers.power_sgd`,
and so on. Only methods whose paper fixes more than the code have a name of their own
here.
"""

from typing import Any

import jax
import optax

from parsgd.compressors import one_bit, scaled_sign
from parsgd.core import Algorithm, Phase, Strategy
from parsgd.errors import UserError, check_transformation, check_whole
from parsgd.reducers import error_feedback, local_momentum, majority_vote
from parsgd.reducers.dense_start import (
    dense,
    does_more,
    idle,
    takes_dense,
    works_dense,
)
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
    """A reducer that compresses, then an optimizer; with a dense start if wanted.

    In step t, with a worker's gradient g, optimizer state s and parameters x::

        r = mean(g) if t < start_step else reducer(g)
        u, s = optimizer(r, s, x),   x <- x + u

    Args:
        optimizer: Any optax transformation; sees the reducer's average.
        reducer: How gradients are compressed and averaged.
        start_step: Steps of dense averaging before compression sets in, 0 or more; it
            starts with zero residuals. What comes before the compression in a chain
            (`local_momentum`, `clip`) works from the first step on, and EF21 starts
            from the last dense gradient, averaged in float32. Must be 0 for reducers
            that are momentum themselves (`demo`, `dgc`): they have no dense form.
        clip_before: Largest global norm of each worker's own gradient, above 0; None
            for any norm.
        clip_after: Largest global norm of the average, above 0; None for any norm.
        skip_nonfinite: Whether all workers stand still in a step in which the gradient
            or update of one is not finite. Residuals stay as they were in any case.

    Returns:
        A `parsgd.Strategy`, or with a ``start_step`` two phases that share one state.

    Raises:
        UserError: ``optimizer`` or ``reducer`` is not an optax transformation,
            ``start_step`` is not a whole number of 0 or more, or a norm is not
            positive; or, from ``init``, ``start_step`` above 0 with a reducer that has
            no dense form.

    Example:
        >>> import optax, parsgd
        >>> phases = parsgd.compressed_sgd(
        ...     optax.sgd(0.1), reducer=parsgd.error_feedback(parsgd.one_bit()),
        ...     start_step=100)
        >>> [phase.start for phase in phases]
        [0, 100]
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
    except Exception:  # it takes its own model's parameters only: `init` asks again
        working = True
    # Momentum, clipping and telling who is at fault need the worker's own gradient.
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
        if (working or does_more(state)) and not takes_dense(reducer, params):
            raise UserError(
                f"start_step={start_step} with a reducer that does more than compress "
                "(momentum, or others in it) and takes no dense=True: the dense steps "
                "would be without all of it; use start_step=0"
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
        min_size: Arrays of fewer entries are averaged as they are; 0 or more, and 0
            with ``bucket``.
        start_step: Steps of dense averaging before quantisation sets in, 0 or more; it
            starts with a zero residual.
        clip_before: As in `compressed_sgd`.
        clip_after: As in `compressed_sgd`.
        skip_nonfinite: As in `compressed_sgd`.

    Returns:
        A `parsgd.Strategy`, or with a ``start_step`` two phases that share one state.

    Raises:
        UserError: ``optimizer`` is not an optax transformation, ``start_step`` or
            ``min_size`` is not a whole number of 0 or more, or a norm is not positive;
            unknown ``levels``, or ``bucket`` with a ``min_size``; or, from ``init``,
            ``bucket`` with ``levels="column"``, where each entry would be a column.
        ValueError: In a step, a state that belongs to another model.

    Example:
        >>> import jax.numpy as jnp, optax, parsgd
        >>> strategy = parsgd.one_bit_sgd(optax.sgd(1.0))
        >>> g = jnp.array([[1.0], [2.0], [-3.0], [-5.0]])
        >>> x, _ = strategy.local(g, strategy.init(g), jnp.zeros_like(g))
        >>> x[:, 0]
        Array([-1.5, -1.5,  4. ,  4. ], dtype=float32)

    References:
        Seide et al., "1-Bit Stochastic Gradient Descent and its Application to
        Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014.

    Differences from the paper:
        Without ``two_sided`` every worker gathers the W payloads and averages them
        itself: nothing is lost on the way back, and (W - 1) payloads are sent.
        Quantised from the first step unless ``start_step`` is set; the paper starts
        from a model that was trained without quantisation for a while.
        No double buffering; `parsgd.reducers.delay` delays gradients as it would.
        A zero counts as positive. One-dimensional leaves are averaged as they are.
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
        zero: The sign of zero, ``"positive"`` or ``"negative"``.
        bucket: Send all arrays as one, with one scale.
        min_size: Arrays of fewer entries are averaged as they are; 0 or more, and 0
            with ``bucket``.
        skip_nonfinite: Whether all workers stand still in a step in which the gradient
            or update of one is not finite.

    Returns:
        A `parsgd.Strategy` whose state is the optimizer's and the residuals.

    Raises:
        UserError: ``optimizer`` is not an optax transformation, ``min_size`` is not a
            whole number of 0 or more, unknown ``zero``, or ``bucket`` with a
            ``min_size``.
        ValueError: In a step, a state that belongs to another model.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from parsgd.strategies import ef_sign_sgd
        >>> strategy = ef_sign_sgd(optax.sgd(1.0))
        >>> g = jnp.array([[1.0, 2.0], [-3.0, -2.0]])
        >>> strategy.local(g, strategy.init(g), jnp.zeros_like(g))[0]
        Array([[-2., -2.],
               [ 2.,  2.]], dtype=float32)

    References:
        Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
        Schemes", ICML 2019, https://arxiv.org/abs/1901.09847.

    Differences from the paper:
        Zero counts as positive, or as ``zero`` says, since one bit has two values.
        One-dimensional leaves are averaged as they are.
    """
    check_transformation("optimizer", optimizer)
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
        optimizer: Applied to the vote, +1 or -1 (0 at a tie with ``tie="zero"``): plain
            SGD in the paper.
        momentum: Of the worker's own gradient, in [0, 1); 0.9 for the paper's signum.
        tie: What a tied vote becomes: ``"positive"``, which is +1, or ``"zero"``.
        zero: How an entry that is zero votes, ``"positive"`` or ``"negative"``.

    Returns:
        A `parsgd.Strategy`.

    Raises:
        UserError: ``optimizer`` is not an optax transformation, ``momentum`` is outside
            [0, 1), or unknown ``tie`` or ``zero``.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from parsgd import comm
        >>> from parsgd.strategies import sign_sgd_majority
        >>> strategy = sign_sgd_majority(optax.sgd(1.0))
        >>> g = jnp.array([[5.0, -1.0], [-1.0, 2.0], [-1.0, 3.0]])  # of three workers
        >>> step = lambda g: strategy.local(g, strategy.init(g), jnp.zeros_like(g))[0]
        >>> jax.vmap(step, axis_name=comm.LANES)(g)[0]
        Array([ 1., -1.], dtype=float32)

    References:
        Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems",
        ICML 2018, https://arxiv.org/abs/1802.04434.

    Differences from the paper:
        Every worker gathers all votes, where the paper has a server that counts them.
        A zero counts as ``zero`` says, a worker whose gradient is zero everywhere has
        no vote, and a tied vote becomes +1 unless ``tie="zero"``.
        Signum's ``m <- b m + (1 - b) g`` has the same signs.
    """
    if not 0 <= momentum < 1:
        raise UserError(f"momentum={momentum}: must be in [0, 1)")
    vote = majority_vote(tie=tie, zero=zero)
    if momentum:
        vote = optax.chain(local_momentum(momentum), vote)
    return data_parallel(optimizer, reducer=vote)
