"""How a run goes on from a checkpoint: its plan, and what it was before."""

from collections.abc import Mapping, Sequence
from typing import Any

from parsgd.core import Phase
from parsgd.training.earlier import earlier, place_of
from parsgd.training.engine import Engine
from parsgd.training.keeper import Keeper, Resumed
from parsgd.training.plan import Origin, Plan
from parsgd.training.segments import after, segments


def resume(
    resumed: Resumed | None,
    plan: Plan,
    phases: Sequence[Phase],
    engine: Engine,
    keeper: Keeper,
    in_rounds: bool,
) -> tuple[Plan, dict[str, list[Any]]]:
    """The plan from the checkpoint on, if there is one, and what the run was before.

    Args:
        resumed: The checkpoint, or None at the start of a run.
        plan: As made for the whole run.
        phases: The algorithm's.
        engine: Runs the rounds that are left.
        keeper: Is told of another end.
        in_rounds: Whether the budget was given in rounds.

    Returns:
        The plan, and what `earlier` finds.

    Raises:
        UserError: More than the budget is done already.
    """
    meta, place = None, place_of(engine.placement)
    if resumed:
        meta = resumed.meta
        plan = resumed_plan(plan, phases, meta, in_rounds)
        keeper.lines += other_end(plan, meta)
        if keeper.changed:  # as to a lower rate, at which it need not diverge
            meta["counts"].pop("bad_rounds", None)
        if plan.steps <= meta["step"]:  # no step is run here
            place = meta.get("place", place)
    return plan, earlier(meta, plan.order.workers, keeper.changed, place)


def resumed_plan(
    plan: Plan, phases: Sequence[Phase], meta: Mapping[str, Any], in_rounds: bool
) -> Plan:
    """The plan of a run that goes on from a checkpoint.

    The same plan, if its rounds come to the checkpoint. If the global batch, the phases
    or the end of the run have changed so that they do not, rounds and the order of the
    data are counted anew from there on, at the same number of samples.

    Args:
        plan: As made for the whole run.
        phases: The algorithm's.
        meta: What `parsgd.training.loop.Loop` stored.
        in_rounds: Whether the budget was given in rounds.

    Raises:
        UserError: More than the budget is done already.
    """
    step, round = meta["step"], meta["round"]
    same = meta["global_batch"] == plan.order.global_batch
    if same:
        kept = plan.moved(Origin(*meta["origin"]), in_rounds=in_rounds)
        left = after(segments(kept, phases), round - kept.origin.round)
        if kept.steps - sum(segment.steps for segment in left) == step:
            return kept
    origin = Origin(step, round, _batches_done(plan, meta))
    return plan.moved(origin, in_rounds=in_rounds)


def other_end(plan: Plan, meta: Mapping[str, Any]) -> list[str]:
    """A line on where a run ends now, if it was to end elsewhere."""
    if plan.steps == meta["steps"]:
        return []
    return [f"the run ends at step {plan.steps}, not {meta['steps']}"]


def resumed_steps(plan: Plan, meta: Mapping[str, Any], in_rounds: bool) -> int:
    """Steps of the whole run that goes on from a checkpoint: of its `resumed_plan`.

    It asks for no phases, which may be parts of this length themselves.

    Args:
        plan: As made for the whole run.
        meta: What `parsgd.training.loop.Loop` stored.
        in_rounds: Whether the budget was given in rounds.

    Returns:
        The steps done, and those that are left; none if the budget is done already.
    """
    done = meta["step"] if in_rounds else _batches_done(plan, meta)
    return meta["step"] + max(0, plan.steps - done)


def _batches_done(plan: Plan, meta: Mapping[str, Any]) -> int:
    """Global batches of the plan's size that count as seen."""
    same = meta["global_batch"] == plan.order.global_batch
    return meta["batch"] if same else plan.batches_of(meta["samples"])
