"""Updates that arrive late: what was computed k steps ago is applied now.

With k = 1 it is the double buffering of Seide et al., "1-Bit Stochastic Gradient
Descent", Interspeech 2014: while a step is computed, the last one's gradient travels.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd.errors import check_whole


class DelayState(NamedTuple):
    """State of `delay`.

    Attributes:
        waiting: The last k updates, each leaf ``[k, ...]``.
        next: Which of them is the oldest, int32 scalar.
    """

    waiting: Any
    next: jax.Array


def delay(k: int = 1) -> optax.GradientTransformation:
    """Hand on at step t what came at step ``t - k``; zeros in the first k steps.

    Between a reducer and an optimizer, ``optax.chain(all_reduce(), delay(1), ...)``, it
    makes the gradients stale: the optimizer sees zero gradients at first, so its decay
    and momentum run as usual. After an optimizer it makes the whole step late.

    Args:
        k: Steps of delay, 0 or more; 0 changes nothing.

    Returns:
        An optax transformation with a `DelayState`; without state if k is 0.

    Raises:
        UserError: ``k`` is not a whole number of 0 or more.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.reducers import delay
        >>> late = delay(1)
        >>> state = late.init(jnp.float32(0))
        >>> seen = []
        >>> for g in (1.0, 2.0, 3.0):
        ...     out, state = late.update(jnp.float32(g), state)
        ...     seen.append(float(out))
        >>> seen
        [0.0, 1.0, 2.0]

    References:
        Seide et al., "1-Bit Stochastic Gradient Descent and its Application to
        Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014, section
        3.4 (double buffering).

    Differences from the paper:
        The gradient is late, and nothing travels beside the computation: it shows what
        staleness does to convergence. The paper's gradients are of one bit; here they
        are what the chain before it hands on.
    """
    check_whole("k", k, 0)
    if k == 0:
        return optax.identity()

    def init(params: Any) -> Any:
        waiting = jax.tree.map(lambda p: jnp.zeros((k, *p.shape), p.dtype), params)
        return DelayState(waiting, jnp.int32(0))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        at = state.next
        out = jax.tree.map(lambda w, g: w[at].astype(g.dtype), state.waiting, updates)
        waiting = jax.tree.map(
            lambda w, g: w.at[at].set(g.astype(w.dtype)), state.waiting, updates
        )
        return out, DelayState(waiting, (at + 1) % k)

    return optax.GradientTransformation(init, update)
