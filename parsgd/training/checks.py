"""Checks that reject an invalid run before anything expensive starts."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from parsgd import cluster
from parsgd.core import Params, Phase, State, TrainState, no_sync
from parsgd.errors import FolderError, UserError, check_accuracy, check_whole, stage
from parsgd.flat import OTHER
from parsgd.tasks import Batch, Task
from parsgd.training.plan import Plan
from parsgd.words import counted


def check_run(
    plan: Plan,
    phases: Sequence[Phase],
    at_least_one: Mapping[str, int],
    target_accuracy: float | None,
    *,
    in_rounds: bool,
) -> None:
    """Refuse sizes that the algorithm cannot have, and values out of range.

    Args:
        plan: The work.
        phases: The algorithm's phases.
        at_least_one: What must be whole numbers of at least 1, by name.
        target_accuracy: In [0, 1], or None.
        in_rounds: Whether the budget was given in rounds.

    Raises:
        UserError: Names the value.
    """
    for name, value in at_least_one.items():
        check_whole(name, value)
    if target_accuracy is not None:
        check_accuracy("target_accuracy", target_accuracy)
    if in_rounds and any(phase.local_steps for phase in phases):
        raise UserError(
            "a budget in rounds is ambiguous here, because the number of local steps "
            "changes during the run: give epochs or samples"
        )
    check_local_steps(plan, phases)


def unreached(plan: Plan, phases: Sequence[Phase]) -> list[str]:
    """A line for each phase that would begin after the run's end.

    Args:
        plan: The work.
        phases: The algorithm's phases.
    """
    return [
        f"warning: the algorithm would change at step {phase.start:,}, and the run has "
        f"{counted(plan.steps, 'step')}: it stays what it is before"
        for phase in phases
        if phase.start >= plan.steps
    ]


def check_local_steps(plan: Plan, phases: Sequence[Phase]) -> None:
    """Refuse a number of local steps that the algorithm would not follow.

    Raises:
        UserError: Says why.
    """
    if plan.local_steps > 1 and all(phase.local_steps for phase in phases):
        raise UserError(
            f"local_steps={plan.local_steps}: this strategy says itself how many local "
            "steps each of its phases has; use local_steps=1"
        )
    every_step = all(phase.strategy.sync is no_sync for phase in phases)
    if every_step and plan.local_steps > 1:
        raise UserError(
            f"local_steps={plan.local_steps}: this strategy does nothing at the end of "
            "a round; use local_steps=1, or one that synchronises every local_steps "
            "steps, such as local_sgd"
        )


def check_metrics(task: Task, spec: TrainState, target_accuracy: float | None) -> None:
    """Refuse metrics that cannot be averaged, and a target that none of them measures.

    Args:
        task: Whose metrics are traced.
        spec: Abstract state of one worker.
        target_accuracy: Or None.

    Raises:
        UserError: There is no loss, a metric is not one number for each example, or
            there is a target and no accuracy.
    """
    some: Any = [rows[:2] for rows in task.data.test]
    found: Any = None

    def metrics(*args):  # returns nothing: JAX cannot sort names of unlike types
        nonlocal found
        found = task.metrics(*args)

    with cluster.busy(), stage("evaluation"):
        jax.eval_shape(metrics, spec.params, spec.model, Batch(*some))
    if not isinstance(found, Mapping) or "loss" not in found:
        what = type(found).__name__
        if isinstance(found, Mapping):
            what = f"{', '.join(map(str, found)) or 'none'}, without a loss"
        raise UserError(
            f"the metrics of {task.name} are {what}: return a dict with a loss, one "
            "number for each example of the batch, and an accuracy where there is one"
        )
    rows = len(some[0])
    for name, values in found.items():
        wrong = ""
        if not hasattr(values, "shape"):
            wrong = f"is a {type(values).__name__}"
        elif values.shape != (rows,):
            wrong = f"is of shape {values.shape} for {counted(rows, 'example')}"
        elif jnp.issubdtype(values.dtype, jnp.complexfloating):
            wrong = f"is {values.dtype}"
        if not isinstance(name, str):
            wrong = f"has a name of type {type(name).__name__}"
        if wrong:
            raise UserError(
                f"the metric {name} of {task.name} {wrong}: return a dict of strings "
                "to one real number for each example, [b]; an evaluation averages them"
            )
    if target_accuracy is not None and "accuracy" not in found:
        raise UserError(
            f"target_accuracy={target_accuracy}: the metrics of {task.name} are "
            f"{', '.join(found)}, without an accuracy, so that the run would never "
            "stop at it: leave it out"
        )


def check_model_state(before: State, returned: Any) -> None:
    """Refuse a loss that returns another kind of model state than it was given.

    Args:
        before: Abstract state before a step.
        returned: What the loss returns, abstract.

    Raises:
        UserError: Names what differs.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise UserError(
            "the task's loss must return (loss, model_state), but returns a "
            f"{type(returned).__name__}"
        )
    value, after = returned
    if value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
        raise UserError(
            f"the task's loss is {value.dtype}{[*value.shape]}: return one "
            "floating-point number, the mean over the batch"
        )
    old, new = (dict(jax.tree.leaves_with_path(tree)) for tree in (before, after))
    for path in [*old, *new]:
        a, b = old.get(path), new.get(path)
        if a is not None and b is not None and a.shape == b.shape:
            # A round stores floating-point values in the type that the state has.
            narrow = jnp.issubdtype(b.dtype, jnp.floating)
            kind = jnp.promote_types(a.dtype, b.dtype) if narrow else b.dtype
            if kind == a.dtype:
                continue
        was, now = (
            "nothing" if x is None else f"{x.dtype}{[*x.shape]}" for x in (a, b)
        )
        raise UserError(
            f"the model's state changes in a step: {jax.tree_util.keystr(path)} is "
            f"{was} before and {now} after. Keep what init makes; what is only to be "
            "looked at belongs among the intermediates (flax linen) or into "
            "nnx.Intermediate"
        )
    if jax.tree.structure(before) != jax.tree.structure(after):
        raise UserError(
            "the structure of the model's state changes in a step from "
            f"{jax.tree.structure(before)} to {jax.tree.structure(after)}: keep what "
            "init makes"
        )


def check_readout(params: Any, model: Any) -> None:
    """Refuse a model to evaluate that is not the same on all workers.

    Args:
        params: For each parameter, whether it is.
        model: For the model's other state likewise.

    Raises:
        UserError: Names what differs.
    """
    if not all(jax.tree.leaves(params)):
        raise UserError(
            "the strategy's readout differs between workers: average it, as in "
            "comm.mean(params)"
        )
    for path, same in jax.tree.leaves_with_path(model):
        if not same:
            raise UserError(
                f"the model's state {jax.tree_util.keystr(path)} differs between "
                "workers and is no floating-point number, so it has no average to "
                "evaluate the model with: make it floating-point, or the same on all "
                "workers"
            )


def refuse_reached(record: Mapping[str, Any], target_accuracy: float | None) -> None:
    """Refuse to go on, with other settings, with a run that has reached its target.

    It would take no step, and its results would be reported as those of the new
    settings.

    Args:
        record: The last one before the checkpoint.
        target_accuracy: Or None.

    Raises:
        UserError: The target is reached there.
    """
    accuracy = record.get("test_accuracy")
    if accuracy is None or target_accuracy is None:
        return
    if accuracy >= target_accuracy:
        raise UserError(
            f"target_accuracy={target_accuracy} was reached at step {record['step']}, "
            f"by {accuracy:.4f}, so there is nothing left to run: give a higher one, "
            "or none (null on the command line), to go on"
        )


def refuse_done(step: int, changed: Mapping[str, Sequence[Any]]) -> None:
    """Refuse changed settings where no step is left to compute with them.

    The results would be reported as theirs.

    Args:
        step: At which the run has ended.
        changed: The settings' keys, with the values before and after.

    Raises:
        FolderError: ``changed`` is not empty.
    """
    if changed:
        told = [
            OTHER.get(key, f"{key}={new} (was {old})")
            for key, (old, new) in changed.items()
        ]
        raise FolderError(
            f"all {step} steps are done, so none would be trained with "
            f"{', '.join(told)}: raise the budget (epochs, samples or rounds) to go on "
            "with it, or choose another folder (hydra.run.dir=DIR, in a sweep "
            "hydra.sweep.dir=DIR)"
        )


def check_params(params: Params) -> None:
    """Refuse a parameter that has no gradient."""
    for path, x in jax.tree.leaves_with_path(params):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise UserError(
                f"the model's parameter {jax.tree_util.keystr(path)} is {x.dtype}, "
                "which has no gradient: make it a floating-point array, or keep it in "
                "the model's other state, which is not trained"
            )


def check_kept(stage: str, before: tuple, after: Any) -> None:
    """Refuse a stage that does not return ``(params, state)`` as it got them."""
    returns = f"the strategy's {stage} must return (params, state) as it got them"
    if not isinstance(after, tuple) or len(after) != 2:
        raise UserError(f"{returns}, but returns a {type(after).__name__}")
    for name, old, new in zip(("params", "state"), before, after, strict=True):
        if jax.tree.structure(old) != jax.tree.structure(new):
            raise UserError(
                f"{returns}, but the structure of {name} changes from "
                f"{jax.tree.structure(old)} to {jax.tree.structure(new)}"
            )
        for (path, a), b in zip(
            jax.tree.leaves_with_path(old), jax.tree.leaves(new), strict=True
        ):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                where = name + jax.tree_util.keystr(path)
                raise UserError(
                    f"{returns}, but {where} changes from {a.dtype}{list(a.shape)} to "
                    f"{b.dtype}{list(b.shape)}"
                )
