"""Majority vote: every worker sends signs, and the sign of most is applied.

Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from parsgd.compressors import sign
from parsgd.errors import check_choice
from parsgd.reducers.exchange import ExchangeState, exchange

TIES = ("positive", "zero")


def majority_vote(
    *, tie: str = "positive", zero: str = "positive"
) -> optax.GradientTransformation:
    """The sign of the sum of the workers' signs, entry by entry.

    That is +1 or -1, or 0 at a tie with ``tie="zero"``. For a gradient g::

        g <- sign(sum_w sign(g_w))

    All leaves are one message of one bit per entry, biases too, and a number that says
    what bits cannot: a worker whose gradient is zero everywhere, as without samples,
    has no vote, and if any gradient is not finite the result is NaN for all. There is
    no memory: for problems on which signs alone fail see `ef_sign_sgd`.

    Args:
        tie: What an even vote becomes: ``"positive"``, +1, as a single bit from a
            server would, or ``"zero"``. So does a vote without voters.
        zero: What an entry that is zero in a gradient with others votes for:
            ``"positive"`` or ``"negative"``. One that is zero on all workers, such as a
            weight of an input that is always zero, is moved by that in every step.

    Returns:
        An optax transformation with an `ExchangeState`.

    Raises:
        UserError: Unknown ``tie`` or ``zero``.

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
        ICML 2018, arXiv:1802.04434.

    Differences from the paper:
        A server counts the votes there; here every worker gathers all of them, so
        W - 1 payloads are sent and none come back. The paper's sign of zero
        is zero; here a zero, which one bit cannot say, counts as ``zero`` says.
    """
    check_choice("tie", tie, TIES)
    votes = exchange(sign(zero=zero), bucket=True)

    def decided(mean: jax.Array) -> jax.Array:
        if tie == "zero":
            return jnp.sign(mean)
        return jnp.where(mean == 0, 1.0, jnp.sign(mean)).astype(mean.dtype)

    def init(params: Any) -> Any:
        del params  # of any size: signs are voted on, whatever a dense average costs
        return ExchangeState(jnp.int32(0), {})

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        mean, _, _, state = votes.average(votes.split(updates)[0], state)
        return jax.tree.map(decided, votes.join(mean, {}, updates)), state

    return optax.GradientTransformation(init, update)
