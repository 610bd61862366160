"""What becomes of a local optimizer's state when workers synchronise."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.core import Params

POLICIES = ("keep", "average", "reset")


def check_policy(policy: str) -> None:
    """Refuse an unknown momentum policy."""
    if policy not in POLICIES:
        raise ValueError(f"momentum={policy!r}: choose one of {', '.join(POLICIES)}")


def synchronise(
    policy: str, optimizer: optax.GradientTransformation, state: Any, params: Params
) -> Any:
    """The local optimizer's state for the next round.

    Args:
        policy: ``"keep"``: each worker keeps its own. ``"average"``: floating-point
            leaves become their mean over workers, counts stay. ``"reset"``: as newly
            initialised, but step counts of learning-rate schedules go on.
        optimizer: The local optimizer.
        state: Its state at the end of the round.
        params: The parameters that the next round starts from.
    """
    if policy == "keep":
        return state
    if policy == "average":
        return comm.mean(state)
    fresh = optimizer.init(jax.tree.map(jnp.copy, params))

    def scheduled(node):
        return isinstance(node, optax.ScaleByScheduleState)

    return jax.tree.map(
        lambda old, new: old if scheduled(old) else new,
        state,
        fresh,
        is_leaf=scheduled,
    )
