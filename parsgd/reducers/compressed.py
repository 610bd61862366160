"""Compressed averages without error feedback: what compression drops is lost."""

from typing import Any

import optax

from parsgd import comm
from parsgd.compressors import Compressor
from parsgd.reducers.exchange import exchange


def compressed_all_reduce(
    compressor: Compressor,
    *,
    two_sided: bool = False,
    bucket: bool = False,
    min_size: int = 0,
    seed: int = 0,
) -> optax.GradientTransformation:
    """Average the workers' compressed gradients, without error feedback.

    For each leaf with gradient g::

        g <- mean(decode(encode(g)))

    For unbiased compressors. One that is not (signs, top-k) needs `error_feedback`:
    what it drops would be lost for good.

    Args:
        compressor: The compressor.
        two_sided: Encode the average again before it is sent back, with a residual at
            its owner; see `parsgd.reducers.exchange`. For compressors that shrink their
            error (`Compressor.contracts`) and are not summed on the way.
        bucket: Compress all leaves as one flat array, in one message. Groups of a
            compressor (buckets, levels) then span leaves; compressors that look at the
            whole array, such as top-k, choose among all entries.
        min_size: Leaves of fewer elements are averaged as they are, like all
            one-dimensional leaves and those that would grow; 0 or more, and 0 with
            ``bucket``.
        seed: Seed of what a stochastic compressor draws.

    Returns:
        An optax transformation with an `ExchangeState`.

    Raises:
        UserError: ``compressor`` is not a `Compressor`; ``min_size`` is not a whole
            number of 0 or more, or not 0 with ``bucket``; ``two_sided`` with a
            compressor whose payloads are summed or that does not shrink its error;
            from ``init``, ``bucket`` with a compressor that makes one flat array
            larger; when used, a compressor whose functions fail.
        ValueError: With ``two_sided``, from ``update``: a state that belongs to another
            model; names the leaf's path.

    Example:
        >>> import jax.numpy as jnp, parsgd
        >>> compressor = parsgd.compressors.linear_8bit()
        >>> reducer = parsgd.compressed_all_reduce(compressor)
        >>> g = jnp.array([[127.0, 0.0, 3.4], [0.6, -7.0, 1.0]])
        >>> reducer.update(g, reducer.init(g))[0]
        Array([[127.,   0.,   3.],
               [  1.,  -7.,   1.]], dtype=float32)

    References:
        Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization
        and Encoding", NeurIPS 2017, arXiv:1610.02132 (its Algorithm 1). Seide et al.,
        "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
        Distributed Training of Speech DNNs", Interspeech 2014 (``two_sided``).
    """
    channel = exchange(
        compressor, two_sided=two_sided, bucket=bucket, min_size=min_size, seed=seed
    )

    def init(params: Any) -> Any:
        return channel.init(params)

    def update(
        updates: Any, state: Any, params: Any = None, *, dense: bool = False, **_: Any
    ) -> Any:
        del params
        if dense:
            return comm.mean(updates), state
        compressed, raw = channel.split(updates)
        mean, _, _, state = channel.average(compressed, state)
        return channel.join(mean, comm.mean(raw), updates), state

    return optax.GradientTransformationExtraArgs(init, update)
