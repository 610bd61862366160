"""From a config to the optimizer, its rate scaled and scheduled."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import optax

from parsgd import scaling
from parsgd.config.targets import call, no_target, takes, wrong
from parsgd.core import Algorithm, no_sync, phases
from parsgd.errors import UserError
from parsgd.training.plan import Plan

# Optimizers of optax.contrib that find their rate as they go.
OWN_RATE = ("prodigy", "dadapt_adamw", "dog", "dowg", "mechanize", "cocob")
ADAM = ("b1", "b2", "eps")  # what an Adam of its own has as well


class Scaled(NamedTuple):
    """An optimizer for the run's batch.

    Attributes:
        optimizer: For a strategy that takes one.
        rate: Its learning rate, a number or a schedule.
        adam: For a strategy that is an Adam of its own (`is_adam`): its arguments
            besides the rate.
        facts: What the summary of the run gets to know of the scaling.
        lines: The same in words.
    """

    optimizer: optax.GradientTransformation
    rate: Any
    adam: dict[str, Any]
    facts: dict[str, Any]
    lines: tuple[str, ...]

    @property
    def schedule(self) -> Callable[[int], Any]:
        """The rate at each step."""
        return self.rate if callable(self.rate) else lambda step: self.rate


def is_adam(strategy: Any) -> bool:
    """Whether the strategy is an optimizer itself, such as 1-bit Adam."""
    return takes(strategy, "learning_rate")


def make_optimizer(
    config: Mapping[str, Any], plan: Plan, allowed: Sequence[str]
) -> Scaled:
    """Make the optimizer that a config describes.

    Raises:
        UserError: The rate is not a number of 0 or more, a call cannot be made, the
            rule does not fit the optimizer, or the strategy cannot use what is set.
    """
    node = config["optimizer"]
    base = node.get("learning_rate")
    number = isinstance(base, int | float) and not isinstance(base, bool)
    if "_target_" not in node:
        raise UserError(no_target(node, "optimizer"))
    if not (number and 0 <= base < math.inf):
        raise UserError(
            f"optimizer.learning_rate={base}: give the base rate as a number, 0 or "
            "more; scaling and schedule change it"
        )
    _check_momentum(node)
    own = is_adam(config["strategy"])
    adam = _of_adam(node, config["strategy"]) if own else {}
    rule = call(config["scaling"], "scaling", allowed=allowed)
    if not isinstance(rule, scaling.Scaling):
        raise wrong("scaling", rule, "a parsgd.scaling.Scaling")
    batch = plan.order.global_batch
    factor, others = (
        rule.factor(batch),
        rule.hyperparameters(batch, adam if own else node),
    )
    warmup = round(rule.warmup_epochs * plan.order.steps_per_epoch)
    schedule = None
    if config["schedule"] is not None:
        schedule = _schedule(config["schedule"], allowed)
    rate = scaling.learning_rate(base, factor, warmup_steps=warmup, schedule=schedule)
    optimizer = call(
        {k: v for k, v in node.items() if k != "learning_rate"} | others,
        "optimizer",
        allowed=allowed,
        learning_rate=rate,
    )
    # By its functions: optax.MultiSteps is one too, and no subclass.
    if not all(callable(getattr(optimizer, part, None)) for part in ("init", "update")):
        raise wrong("optimizer", optimizer, "an optax.GradientTransformation")
    facts = {
        "base_learning_rate": base,
        "learning_rate": base * factor,
        "lr_factor": factor,
        "scaling": rule.rule,
        "reference_batch": rule.reference_batch,
    } | {f"scaled_{name}": value for name, value in others.items()}
    lines = _describe(rule, batch, base, factor, others, warmup)
    asked = config["scaling"].get("warmup_epochs")
    if asked and rule.rule == "none":
        lines.append(
            f"scaling.warmup_epochs={asked} is not used: with scaling=none there is no "
            "other rate to warm up to"
        )
    if factor > 1 and warmup >= plan.steps:
        lines.append(
            f"warning: the warm-up takes {warmup} steps and the run has {plan.steps}, "
            f"so no step has the full rate of {base * factor:g}: shorten it with "
            "scaling.warmup_epochs, or raise the budget"
        )
    return Scaled(optimizer, rate, adam | others if own else {}, facts, tuple(lines))


def cautions(
    config: Mapping[str, Any], plan: Plan, scaled: Scaled, strategy: Algorithm
) -> list[str]:
    """What few would expect where each worker has an optimizer for itself.

    Args:
        config: As plain values.
        plan: The sizes.
        scaled: What `make_optimizer` made of them.
        strategy: What the optimizer went into.
    """
    parts, order, lines = phases(strategy), plan.order, []
    alone = any(part.strategy.sync is not no_sync for part in parts)
    if is_adam(config["strategy"]) or not alone:
        return []
    factor = scaled.facts["lr_factor"]
    if "scaled_b1" in scaled.facts and factor != 1 and order.workers > 1:
        lines.append(
            "warning: b1, b2 and eps are scaled for the global batch of "
            f"{order.global_batch}, but here each worker has an Adam of its own, which "
            f"sees a batch of {order.worker_batch}: scaling=sqrt leaves them alone"
        )
    target = str(config["optimizer"]["_target_"])
    if (
        config["strategy"].get("momentum_policy") == "reset"
        and target.removeprefix("optax.contrib.") in OWN_RATE
    ):
        lines.append(
            f"warning: {target} estimates its own rate, and momentum_policy=reset has "
            "it begin with the smallest in every round: use "
            "strategy.momentum_policy=keep"
        )
    return lines


def _of_adam(node: Mapping[str, Any], strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Of an optimizer's arguments those that an Adam of its own takes, with its values.

    Raises:
        UserError: The optimizer has others, which nothing would use.
    """
    parameters = inspect.signature(optax.adam).parameters
    given = {k: v for k, v in node.items() if k not in ("_target_", "learning_rate")}
    taken = [name for name in ADAM if name in given and takes(strategy, name)]
    unused = {
        name: value
        for name, value in given.items()
        if name not in taken
        and not (name in parameters and value == parameters[name].default)
    }
    if node["_target_"] != "optax.adam":
        unused = {"_target_": node["_target_"]}
    if unused:
        listed = ", ".join(f"optimizer.{key}={value}" for key, value in unused.items())
        raise UserError(
            f"{listed}: {strategy['_target_']} is an Adam of its own and takes only "
            f"{', '.join(['learning_rate', *ADAM])} of the optimizer: use "
            "optimizer=adam and leave the rest at its defaults"
        )
    return {name: strategy.get(name, given[name]) for name in taken}


def _check_momentum(node: Mapping[str, Any]) -> None:
    """Refuse a momentum that grows, or a kind of one where there is none.

    Optax says nothing.

    Raises:
        UserError: What to give.
    """
    target, momentum = str(node["_target_"]), node.get("momentum")
    if target not in ("optax.sgd", "optax.rmsprop"):
        return
    if isinstance(momentum, int | float) and not 0 <= momentum < 1:
        raise UserError(
            f"optimizer.momentum={momentum}: give a number from 0 up to, but not, 1"
        )
    without = momentum is None
    if without and node.get("nesterov") is True:
        raise UserError(
            f"optimizer.nesterov=true: without a momentum {target} does not use it: "
            "give optimizer.momentum too, such as 0.9, or leave optimizer.nesterov out"
        )


def _schedule(node: Mapping[str, Any], allowed: Sequence[str]) -> Any:
    for name in ("decay_steps", "transition_steps"):
        steps = node.get(name, 1)
        # Of optax's schedules some would stay constant, without a word.
        if isinstance(steps, int | float) and not steps >= 1:
            raise UserError(
                f"schedule.{name}={steps}: must be 1 or more; ${{steps:1.0}} is the "
                "whole run"
            )
    return call(node, "schedule", allowed=allowed)


def _describe(rule, batch, base, factor, others, warmup) -> list[str]:
    against = ""
    if rule.reference_batch is not None:
        against = (
            f": global batch {batch} against reference batch {rule.reference_batch}"
        )
    line = f"learning rate {base:g} x {factor:g} = {base * factor:g} "
    line += f"({rule.rule}{against})"
    if others:
        line += "; " + ", ".join(f"{name} {value:g}" for name, value in others.items())
    if warmup and factor > 1:
        line += f"; warm-up from {base:g} over {warmup} steps"
    if warmup and factor < 1:
        line += "; no warm-up, which only raises a rate"
    return [line]
