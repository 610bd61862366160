"""Majority vote: every worker sends signs, and the sign of most is applied.

Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.compressors import sign
from parsgd.reducers import paths
from parsgd.reducers.compressed import compressed_all_reduce

TIES = ("positive", "zero")


def majority_vote(*, tie: str = "positive") -> optax.GradientTransformation:
    """The sign of the sum of the workers' signs, entry by entry.

    That is +1 or -1, or 0 at a tie with ``tie="zero"``. For a gradient g::

        g <- sign(sum_w sign(g_w))

    All leaves are one message of one bit per entry, biases too, and a byte that says
    whether the gradient was finite: if any was not, the result is NaN for all. There is
    no memory: for problems on which signs alone fail see `ef_sign_sgd`.

    Args:
        tie: What an even vote becomes: ``"positive"``, +1, as a single bit from a
            server would, or ``"zero"``. A zero gradient counts as positive.

    Returns:
        An optax transformation with an `ExchangeState`.

    Raises:
        ValueError: Unknown ``tie``.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from parsgd import comm
        >>> from parsgd.reducers import majority_vote
        >>> vote = majority_vote()
        >>> g = jnp.array([[5.0, -1.0], [-1.0, 2.0], [-1.0, 3.0]])  # of three workers
        >>> each = lambda g: vote.update(g, vote.init(g))[0]
        >>> jax.vmap(each, axis_name=comm.LANES)(g)[0]
        Array([-1.,  1.], dtype=float32)

    References:
        Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems",
        ICML 2018.

    Differences from the paper:
        A server counts the votes there; here every worker gathers all of them, so
        (W - 1)/8 bytes per entry are sent and none come back. The paper's sign of zero
        is zero; here a zero, which one bit cannot say, counts as positive.
    """
    if tie not in TIES:
        raise ValueError(f"tie={tie!r}: choose one of {', '.join(TIES)}")
    votes = compressed_all_reduce(sign(), bucket=True)

    def decided(mean):
        if tie == "zero":
            return jnp.sign(mean)
        return jnp.where(mean >= 0, 1, -1).astype(mean.dtype)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        mean, state = votes.update(updates, state, params)
        # A sign is never NaN, so whether a gradient was finite is sent beside it.
        fine = comm.gather(paths.finite(*jax.tree.leaves(updates)).astype(jnp.uint8))
        fine = jnp.min(fine) == 1
        out = jax.tree.map(lambda x: jnp.where(fine, decided(x), jnp.nan), mean)
        return out, state

    return optax.GradientTransformation(votes.init, update)
