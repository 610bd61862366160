"""The first steps of a method that starts uncompressed: its reducer, but dense.

Two forms. `idle` does nothing of the reducer, which is enough where it only compresses.
`dense` runs it with ``update(..., dense=True)``, which optax hands through chains:
what stands before the compression, such as momentum, works from the first step, and
the reducer averages as it is and keeps what it needs later. `error_feedback`, `ef21`,
`compressed_all_reduce` and `power_sgd` know that argument, and `skip_nonfinite` and
optax's wrappers hand it on.
"""

from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.reducers.exchange import ExchangeState
from parsgd.reducers.feedback import FeedbackState
from parsgd.reducers.momentum import has_momentum
from parsgd.reducers.nonfinite import SkipState
from parsgd.reducers.power_sgd import PowerSGDState

PROBE = {"probe": jax.ShapeDtypeStruct((8, 8), jnp.float32)}
# States of reducers that have nothing to do before they compress.
ONLY_COMPRESS = (ExchangeState, FeedbackState, PowerSGDState)
KNOW = (FeedbackState, PowerSGDState)  # states of those that all take ``dense=True``
# Beside tuples, which are those of `optax.chain`; a plain dict may be a reducer's own.
HOLD_OTHERS = (
    OrderedDict,  # of `optax.named_chain`
    SkipState,
    optax.MaskedState,
    optax.ApplyIfFiniteState,
    optax.MultiStepsState,
    optax.transforms.PartitionState,
)


def idle(
    reducer: optax.GradientTransformation, *, average: bool = False
) -> optax.GradientTransformation:
    """A reducer that keeps the state of another and compresses nothing.

    Args:
        reducer: The one that waits.
        average: Whether to average gradients here, where what comes before must see
            each worker's own; otherwise ``Strategy.mean_gradient`` does.
    """

    def update(updates: Any, state: Any, params: Any = None):
        del params
        return comm.mean(updates) if average else updates, state

    return optax.GradientTransformation(reducer.init, update)


def dense(reducer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Another reducer that compresses nothing yet; it sees each worker's own gradient.

    Args:
        reducer: One of which `works_dense` is true.
    """
    whole = optax.with_extra_args_support(reducer)

    def update(updates: Any, state: Any, params: Any = None):
        return whole.update(updates, state, params, dense=True)

    return optax.GradientTransformation(reducer.init, update)


def works_dense(reducer: optax.GradientTransformation) -> bool:
    """Whether a reducer has something to do in dense steps and takes ``dense=True``."""
    state = jax.eval_shape(reducer.init, PROBE)
    return takes_dense(reducer) and not isinstance(state, ONLY_COMPRESS)


def takes_dense(reducer: optax.GradientTransformation, params: Any = PROBE) -> bool:
    """Whether a reducer, or something in it, reads the argument ``dense``.

    Of several parts of `optax.partition` each must: one that does not would compress.

    Args:
        reducer: The reducer.
        params: Parameters to try it on; some reducers only take their own model's.
    """
    asked = _Asked()
    whole = optax.with_extra_args_support(reducer)
    state = jax.eval_shape(reducer.init, params)
    jax.eval_shape(lambda g, s: whole.update(g, s, g, dense=asked), params, state)
    parts = _found(state, optax.transforms.PartitionState)
    several = [x.inner_states.values() for x in parts if len(x.inner_states) > 1]
    return asked.was_read and all(_found(x, KNOW) for some in several for x in some)


def _found(state: Any, kind: Any) -> list[Any]:
    """What is of a kind in a reducer's state."""
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in nodes if isinstance(node, kind)]


def does_more(state: Any) -> bool:
    """Whether a reducer with such a state does more than compress.

    It has momentum, or others in it: clipping, skipping, another reducer for some
    leaves.
    """
    return type(state) is tuple or isinstance(state, HOLD_OTHERS) or has_momentum(state)


class _Asked:
    """A true value, for ``dense=``, that records whether it was read."""

    was_read = False

    def __bool__(self) -> bool:
        self.was_read = True
        return True
