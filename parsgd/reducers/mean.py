"""Dense averaging of gradients over all workers."""

from typing import Any

import optax

from parsgd import comm


def all_reduce() -> optax.GradientTransformation:
    """Average over workers: ``g <- mean(g)``.

    Put it before an optimizer and every worker takes the same step:
    ``optax.chain(all_reduce(), optax.sgd(0.1, 0.9))``. Transformations before it see
    the worker's own gradient, those after it the average, so clipping before or after
    the reduction is a matter of order in the chain.
    """

    def update(updates, state, params=None):
        del params
        return comm.mean(updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def idle(reducer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Another reducer's state with nothing done: gradients pass unchanged.

    For the first phase of a method that starts uncompressed: that phase averages dense
    gradients (``Strategy.mean_gradient``), and the run switches to ``reducer`` itself
    later, with the same state.
    """

    def update(updates: Any, state: Any, params: Any = None):
        del params
        return updates, state

    return optax.GradientTransformation(reducer.init, update)
