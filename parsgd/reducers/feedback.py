"""Error feedback: what compression drops is added to the next gradient.

Seide et al. 2014; Stich et al., "Sparsified SGD with Memory", NeurIPS 2018;
Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019; Richtarik et al., "EF21", NeurIPS 2021.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.compressors import Compressor
from parsgd.compressors.base import half_precision
from parsgd.compressors.checked import checked
from parsgd.reducers import paths
from parsgd.reducers.exchange import ExchangeState, exchange

WITHOUT = "compressed_all_reduce (feedback=none)"


class FeedbackState(NamedTuple):
    """State of `error_feedback`.

    Attributes:
        error: What has not been sent yet, ``float32``, for each leaf that is
            compressed, by the leaf's path.
        exchange: State of the exchange.
    """

    error: dict[str, jax.Array]
    exchange: ExchangeState


class EF21State(NamedTuple):
    """State of `ef21`.

    Attributes:
        estimate: h, what the others know of this worker's gradient, ``float32``, by
            path.
        mean: The workers' average of h, equal on all.
        exchange: State of the exchange.
    """

    estimate: dict[str, jax.Array]
    mean: dict[str, jax.Array]
    exchange: ExchangeState


def error_feedback(
    compressor: Compressor,
    *,
    two_sided: bool = False,
    bucket: bool = False,
    min_size: int = 0,
    seed: int = 0,
) -> optax.GradientTransformation:
    """Average compressed gradients; keep what each worker could not send.

    For each leaf with gradient g and residual e::

        v = g + e,   q = decode(encode(v)),   e <- v - q,   g <- mean(q)

    so ``q + e_new = g + e_old`` to rounding, and the average has the same bits on every
    worker. In half precision e also keeps what rounding the average to the leaf's type
    loses, but not what sums of half-precision payloads (`fp16`, `bf16`) lose on the
    way. Where a leaf's average is not finite its residuals stay as they were. After an
    optimizer (``chain(optax.sgd(lr), error_feedback(...))``) the residual is in units
    of the step, as in EF-signSGD; before one, in units of the gradient.

    Args:
        compressor: The compressor; must shrink its error (`Compressor.contracts`).
        two_sided: Encode the average again before it is sent back, with a residual at
            its owner; see `parsgd.reducers.exchange`. For compressors whose payloads
            are not summed on the way.
        bucket: Compress all leaves as one flat array, in one message.
        min_size: Leaves of fewer elements are averaged as they are; 0 or more, and 0
            with ``bucket``.
        seed: Seed of what a stochastic compressor draws.

    Returns:
        An optax transformation with a `FeedbackState`.

    Raises:
        UserError: As `compressed_all_reduce`, or a compressor that does not shrink its
            error.
        ValueError: From ``update``: a residual whose leaves are not those of the
            gradient, as after the model was renamed or reshaped; names the path.

    Example:
        >>> import jax.numpy as jnp, parsgd
        >>> reducer = parsgd.error_feedback(parsgd.compressors.top_k(density=0.25))
        >>> g = {"w": jnp.array([[1.0, -5.0], [2.0, 3.0]])}
        >>> sent, state = reducer.update(g, reducer.init(g))
        >>> sent["w"]
        Array([[ 0., -5.],
               [ 0.,  0.]], dtype=float32)
        >>> state.error
        {"['w']": Array([[1., 0.],
               [2., 3.]], dtype=float32)}

    References:
        Seide et al., "1-Bit Stochastic Gradient Descent and its Application to
        Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014. Stich,
        Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018,
        arXiv:1809.07599. Karimireddy et al., "Error Feedback Fixes SignSGD and other
        Gradient Compression Schemes", ICML 2019, arXiv:1901.09847.

    Differences from the papers:
        Stich et al. and Karimireddy et al. keep the residual of the step; that is the
        chain with the optimizer first. Leaves of one dimension, and those that would
        grow, are averaged as they are.
    """
    channel = exchange(
        compressor,
        two_sided=two_sided,
        bucket=bucket,
        min_size=min_size,
        seed=seed,
        feedback="error_feedback",
        instead=WITHOUT,
    )

    def init(params) -> Any:
        return FeedbackState(channel.zeros(params), channel.init(params))

    def update(
        updates: Any, state: Any, params: Any = None, *, dense: bool = False, **_: Any
    ) -> Any:
        del params
        if dense:
            return comm.mean(updates), state
        gradient, raw = channel.split(updates)
        paths.check("residual", state.error, gradient)
        total = {path: g + state.error[path] for path, g in gradient.items()}
        mean, sent, good, inner = channel.average(total, state.exchange)
        # The average is equal on all workers, so they agree on whether to go on.
        error = {
            path: optax.tree.where(good[path], v - sent[path], state.error[path])
            for path, v in total.items()
        }
        reduced = channel.join(mean, comm.mean(raw), updates)
        if any(x.dtype.itemsize < 4 for x in jax.tree.leaves(updates)):
            # What rounding to the leaf's type loses of the average, all workers owe.
            applied, _ = channel.split(reduced)
            lost = {path: mean[path] - x for path, x in applied.items()}
            # It may be larger than any number of that type.
            error = {
                path: jnp.where(paths.finite(lost[path]), e + lost[path], e)
                for path, e in error.items()
            }
        return reduced, FeedbackState(error, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def ef21(
    compressor: Compressor,
    *,
    bucket: bool = False,
    min_size: int = 0,
    seed: int = 0,
) -> optax.GradientTransformation:
    """EF21: send the compressed change of the gradient, and use the estimate.

    For each leaf with gradient g and estimate h (zero at first)::

        c = decode(encode(g - h)),   h <- h + c,   g <- mean(h)

    Args:
        compressor: The compressor; must shrink its error (`Compressor.contracts`).
            Payloads in half precision are gathered, not summed, since sums would be
            rounded.
        bucket: Compress all leaves as one flat array, in one message.
        min_size: Leaves of fewer elements are averaged as they are; 0 or more, and 0
            with ``bucket``.
        seed: Seed of what a stochastic compressor draws.

    Returns:
        An optax transformation with an `EF21State`.

    Raises:
        UserError: As `error_feedback`, but for ``two_sided``.
        ValueError: From ``update``: estimates that belong to another model; names the
            path.

    Example:
        >>> import jax.numpy as jnp, parsgd
        >>> reducer = parsgd.ef21(parsgd.compressors.top_k(density=0.25))
        >>> g = jnp.array([[1.0, -5.0], [2.0, 3.0]])
        >>> state = reducer.init(g)
        >>> for _ in range(2):  # the same gradient twice
        ...     estimate, state = reducer.update(g, state)
        >>> estimate
        Array([[ 0., -5.],
               [ 0.,  3.]], dtype=float32)

    References:
        Richtarik, Sokolov and Fatkhullin, "EF21: A New, Simpler, Theoretically Better,
        and Practically Faster Error Feedback", NeurIPS 2021, arXiv:2106.05203.

    Differences from the paper:
        The paper's h starts as a full first gradient, here as zero; after dense first
        steps (``start_step`` of `parsgd.compressed_sgd`) as the last of these. Leaves
        of one dimension, and those that would grow, are averaged as they are.
    """
    compressor = checked(compressor)
    if compressor.sums and half_precision(compressor):
        # The sum of what was sent would be rounded, and the estimates' average drift.
        compressor = compressor._replace(sums=False)
    channel = exchange(
        compressor,
        bucket=bucket,
        min_size=min_size,
        seed=seed,
        feedback="ef21",
        instead=WITHOUT,
    )

    def init(params) -> Any:
        zeros = channel.zeros(params)
        return EF21State(zeros, channel.zeros(params), channel.init(params))

    def update(
        updates: Any, state: Any, params: Any = None, *, dense: bool = False, **_: Any
    ) -> Any:
        del params
        gradient, raw = channel.split(updates)
        paths.check("estimate", state.estimate, gradient)
        if dense:
            moved, known, inner = comm.mean(gradient), gradient, state.exchange
        else:
            change = {path: g - state.estimate[path] for path, g in gradient.items()}
            mean, sent, _, inner = channel.average(change, state.exchange)
            # The estimates' average needs no message: it moves by the average change.
            moved = {path: h + mean[path] for path, h in state.mean.items()}
            known = {path: h + sent[path] for path, h in state.estimate.items()}
        kept, estimate = {}, {}
        for path, h in state.estimate.items():
            kept[path], estimate[path] = optax.tree.where(
                paths.finite(moved[path]),
                (moved[path], known[path]),
                (state.mean[path], h),
            )
        reduced = channel.join(moved, comm.mean(raw), updates)
        return reduced, EF21State(estimate, kept, inner)

    return optax.GradientTransformationExtraArgs(init, update)
