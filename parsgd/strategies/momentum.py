"""What becomes of a local optimizer's state when workers synchronise."""

import functools
from typing import Any

import jax
import optax
import optax.contrib

from parsgd import comm
from parsgd.core import Params
from parsgd.errors import check_choice
from parsgd.reducers.delay import DelayState
from parsgd.reducers.nonfinite import SkipState

POLICIES = ("keep", "average", "reset")
# States that go on, except for the state of another optimizer inside them.
WITHIN = {
    optax.InjectHyperparamsState: "inner_state",
    optax.InjectStatefulHyperparamsState: "inner_state",
    optax.MultiStepsState: "inner_opt_state",
    optax.ApplyIfFiniteState: "inner_state",
    SkipState: "inner",
    optax.ConditionallyMaskState: "inner_state",
    optax.ConditionallyTransformState: "inner_state",
}
# States that start anew, except for the count that their schedules read.
COUNTED = {
    optax.contrib.ScheduleFreeState: "step_count",
    optax.contrib.ScaleByAdemamixState: "count_m2",
}


def check_policy(policy: str) -> None:
    """Refuse an unknown momentum policy.

    Raises:
        UserError: ``policy`` is not one of `POLICIES`.
    """
    check_choice("momentum_policy", policy, POLICIES)


def synchronise(
    policy: str, optimizer: optax.GradientTransformation, state: Any, params: Params
) -> Any:
    """The local optimizer's state for the next round.

    Args:
        policy: ``"keep"``: each worker keeps its own. ``"average"``: floating-point
            leaves become their mean over workers, counts stay. ``"reset"``: as newly
            initialised, except that step counts of schedules and conditions go on, so
            do counts of skipped steps, and so do gradients that wait, in
            `optax.MultiSteps` or `parsgd.reducers.delay`. It is not for optimizers that
            estimate their own rate, such as `optax.contrib.prodigy`: they would begin
            every round with the smallest one.
        optimizer: The local optimizer.
        state: Its state at the end of the round.
        params: The parameters that the next round starts from.

    Returns:
        A state with the structure of ``state``.
    """
    if policy == "keep":
        return state
    if policy == "average":
        return comm.mean(state)
    return _reset(state, optimizer.init(params))


@functools.cache
def _kept() -> tuple[type, ...]:
    """States that go on: counts of rates, of decay and of noise; what is delayed."""
    decay = optax.add_decayed_weights(lambda count: 0.0)  # not exported
    return (
        optax.ScaleByScheduleState,
        type(jax.eval_shape(decay.init, ())),
        optax.AddNoiseState,
        DelayState,
    )


def _reset(old: Any, new: Any) -> Any:
    """``new``, but with what goes on from ``old``."""
    if isinstance(old, _kept()):
        return old
    for kind, field in WITHIN.items():
        if isinstance(old, kind):
            inner = _reset(getattr(old, field), getattr(new, field))
            return old._replace(**{field: inner})
    known = (*_kept(), *WITHIN, *COUNTED)
    fresh = jax.tree.map(
        lambda a, b: _reset(a, b) if isinstance(a, known) else b,
        old,
        new,
        is_leaf=lambda node: node is not old and isinstance(node, known),
    )
    for kind, count in COUNTED.items():
        if isinstance(old, kind):
            return fresh._replace(**{count: getattr(old, count)})
    return fresh
