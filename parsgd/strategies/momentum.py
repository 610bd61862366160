"""What becomes of a local optimizer's state when workers synchronise."""

import functools
from typing import Any

import jax
import optax

from parsgd import comm
from parsgd.core import Params

POLICIES = ("keep", "average", "reset")
INJECTED = (optax.InjectHyperparamsState, optax.InjectStatefulHyperparamsState)


def check_policy(policy: str) -> None:
    """Refuse an unknown momentum policy.

    Raises:
        ValueError: ``policy`` is not one of `POLICIES`.
    """
    if policy not in POLICIES:
        listed = ", ".join(POLICIES)
        raise ValueError(f"momentum_policy={policy!r}: choose one of {listed}")


def synchronise(
    policy: str, optimizer: optax.GradientTransformation, state: Any, params: Params
) -> Any:
    """The local optimizer's state for the next round.

    Args:
        policy: ``"keep"``: each worker keeps its own. ``"average"``: floating-point
            leaves become their mean over workers, counts stay. ``"reset"``: as newly
            initialised, but step counts of schedules go on, and so do gradients that
            `optax.MultiSteps` has gathered.
        optimizer: The local optimizer.
        state: Its state at the end of the round.
        params: The parameters that the next round starts from.
    """
    if policy == "keep":
        return state
    if policy == "average":
        return comm.mean(state)
    return _reset(state, optimizer.init(params))


@functools.cache
def _scheduled() -> tuple[type, ...]:
    """States that count for schedules: of rates, of weight decay and of noise."""
    decay = optax.add_decayed_weights(lambda count: 0.0)  # optax does not export its
    return (
        optax.ScaleByScheduleState,
        type(jax.eval_shape(decay.init, ())),
        optax.AddNoiseState,
    )


def _reset(old: Any, new: Any) -> Any:
    """``new``, but with the step counts and values of schedules from ``old``."""
    if isinstance(old, _scheduled()):
        return old
    if isinstance(old, INJECTED):
        return old._replace(inner_state=_reset(old.inner_state, new.inner_state))
    if isinstance(old, optax.MultiStepsState):
        inner = _reset(old.inner_opt_state, new.inner_opt_state)
        return old._replace(inner_opt_state=inner)
    known = (*_scheduled(), *INJECTED, optax.MultiStepsState)
    return jax.tree.map(
        lambda a, b: _reset(a, b) if isinstance(a, known) else b,
        old,
        new,
        is_leaf=lambda node: isinstance(node, known),
    )
