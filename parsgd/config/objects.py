"""``build``: from a run's config, `parsgd.config.schema.Config`, to objects."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from parsgd.config.messages import explain, nearest
from parsgd.config.optimizer import Scaled, cautions, is_adam, make_optimizer
from parsgd.config.schema import Checkpoint, Config, Placement, register
from parsgd.config.targets import ALLOWED, call, is_call_of, takes, wrong
from parsgd.core import Algorithm, Phase, Strategy
from parsgd.errors import UserError
from parsgd.flat import UNSTORED
from parsgd.strategies import block_momentum
from parsgd.tasks import Task
from parsgd.training.plan import Plan, check_given, make_plan
from parsgd.training.resumed import resumed_steps

BATCHES = ("worker_batch", "global_batch")
BUDGETS = ("epochs", "samples", "rounds")
SIZES = ("workers", "local_steps", *BATCHES, *BUDGETS, "micro_batches")
SIZES += ("seed", "tail", "shards", "label_skew")
FIT = ("target_accuracy", "evaluations", "train_examples", "max_bad_rounds")
FIT += ("check_replicas",)


class Built(NamedTuple):
    """What a config describes.

    Attributes:
        config: The config as it is stored: resolved, with the base learning rate.
        task: First argument of `parsgd.fit`.
        strategy: Second argument.
        arguments: Its keyword arguments.
        facts: What the summary of the run gets to know of the scaling.
        lines: The same in words, for the start of the run.
    """

    config: dict[str, Any]
    task: Task
    strategy: Algorithm
    arguments: dict[str, Any]
    facts: dict[str, Any]
    lines: tuple[str, ...]


def resolved(cfg: DictConfig, steps: int | None = None) -> dict[str, Any]:
    """The config as plain values, as a job stores it.

    Args:
        cfg: As Hydra composed it.
        steps: Optimizer steps of the run; None leaves ``${steps:...}`` as they stand.

    Raises:
        UserError: A reference leads nowhere.
    """
    register(steps)
    try:
        plain = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from error
    finally:
        register()
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items() if key not in UNSTORED}


def as_stored(cfg: DictConfig) -> dict[str, Any]:
    """A job's config as plain values, as far as it can be resolved."""
    try:
        return resolved(cfg)
    except UserError:
        # It fails again when the job is built, and that is reported. What leads nowhere
        # is stored as it was written.
        return {str(key): _as_written(cfg, key) for key in cfg if key not in UNSTORED}


def _as_written(cfg: DictConfig, key: Any) -> Any:
    try:
        value = cfg[key]
        resolve = OmegaConf.is_config(value)
        return OmegaConf.to_container(value, resolve=True) if resolve else value
    except OmegaConfBaseException:
        raw = OmegaConf.to_container(cfg)
        assert isinstance(raw, dict)
        return raw[key]


def build(
    cfg: DictConfig,
    *,
    allowed: Sequence[str] = ALLOWED,
    position: Mapping[str, Any] | None = None,
) -> Built:
    """Build everything that `parsgd.fit` needs, and nothing that computes.

    Args:
        cfg: A config with the keys of `Config`.
        allowed: Top-level packages whose functions the config may call.
        position: Where a run that goes on stands: of what is stored with its
            checkpoint what `resumed_steps` asks for. ``${steps:...}`` is then a part of
            the steps done and those left; the config that is stored stays as it was.

    Raises:
        UserError: Sizes that do not fit, or calls that cannot be made.
    """
    first = check(cfg)
    task = task_of(first, allowed)
    plan = plan_of(task, first)
    config = made = resolved(cfg, plan.steps)
    moved = []
    if position is not None:
        steps = resumed_steps(plan, position, first["rounds"] is not None)
        plan, made = plan._replace(steps=steps), resolved(cfg, steps)
        if made != config:
            moved = [f"parts of the run's length are of {steps} steps, done and left"]
    scaled = make_optimizer(made, plan, allowed)
    strategy = _strategy(made, scaled, allowed)
    phased = isinstance(strategy, tuple) and strategy
    if not (isinstance(strategy, Strategy) or _phases(phased)):
        raise wrong("strategy", strategy, "a parsgd.Strategy or a tuple of Phases")
    eta, source = _block_momentum(made, allowed)
    unexpected = cautions(made, plan, scaled, strategy)
    lines = (*moved, *scaled.lines, *_choices(made, eta, source), *unexpected)
    facts = scaled.facts | ({} if eta is None else {"block_momentum_eta": eta})
    arguments = {name: config[name] for name in (*SIZES, *FIT)}
    arguments["placement"] = config["placement"]["kind"]
    arguments["devices"] = _devices(config["placement"]["devices"])
    arguments["logged_learning_rate"] = scaled.schedule
    return Built(config, task, strategy, arguments, facts, lines)


def task_of(config: Mapping[str, Any], allowed: Sequence[str] = ALLOWED) -> Task:
    """The task of a config.

    Raises:
        UserError: It cannot be made.
    """
    task = call(config["task"], "task", allowed=allowed)
    if not isinstance(task, Task):
        raise wrong("task", task, "a parsgd.Task, such as parsgd.classification makes")
    return task


def plan_of(task: Task, config: Mapping[str, Any]) -> Plan:
    """The sizes and the budget of a config's run."""
    x, y = task.data.train
    return make_plan(len(x), labels=y, **{name: config[name] for name in SIZES})


def check(cfg: DictConfig) -> dict[str, Any]:
    """The config as plain values, if it is whole: what can be said without any call.

    Raises:
        UserError: A value is missing, a key is unknown or would not be used, or there
            is not exactly one batch size and one budget.
    """
    config = resolved(cfg)
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise UserError(f"{missing[0]} must be given, as in {missing[0]}=VALUE")
    _check_keys(config)
    batches, budgets = (
        {key: config[key] for key in keys} for keys in (BATCHES, BUDGETS)
    )
    check_given(batches, budgets)
    _check_used(config)
    if "checkpoint" in cfg and not saves(cfg):
        _check_off(cfg.checkpoint)
    return config


def saves(cfg: DictConfig) -> bool:
    """Whether the config's run saves checkpoints."""
    node = cfg.checkpoint
    return (node.rounds, node.minutes) != (None, None) or bool(node.keep_best)


def _check_off(node: DictConfig) -> None:
    """Refuse what only runs with checkpoints have a use for."""
    for f in fields(Checkpoint):
        if (value := node[f.name]) != f.default:
            given = f"checkpoint.{f.name}={str(value).lower()}"
            raise UserError(
                f"{given}: this run saves no checkpoints, so nothing would use it: "
                "give checkpoint.rounds, checkpoint.minutes or checkpoint.keep_best "
                "too, or leave it out; a run that saved goes on with `parsgd train "
                "resume=DIR`"
            )


def _check_used(config: Mapping[str, Any]) -> None:
    """Refuse a compressor or a feedback that nothing has as a part."""
    for key in ("compressor", "feedback"):
        others = [config[k] for k in ("strategy", "optimizer", "feedback") if k != key]
        if config[key] is not None and not _holds(others, config[key]):
            raise UserError(
                f"{key}: this strategy has no exchangeable {key}, so nothing would use "
                "it; take one that has, such as strategy=compressed, or leave it out"
            )


def _holds(node: Any, part: Any) -> bool:
    if node == part:
        return True
    inner = node.values() if isinstance(node, Mapping) else node
    nested = isinstance(node, Mapping | list)
    return nested and any(_holds(one, part) for one in inner)


def _strategy(
    config: Mapping[str, Any], scaled: Scaled, allowed: Sequence[str]
) -> Algorithm:
    node = config["strategy"]
    call_strategy = functools.partial(call, node, "strategy", allowed=allowed)
    if is_adam(node):
        return call_strategy(learning_rate=scaled.rate, **scaled.adam)
    return call_strategy(scaled.optimizer)


def _check_keys(config: Mapping[str, Any]) -> None:
    """No key too many, which nothing would read, and none too few."""
    for node, schema, prefix in (
        (config, Config, ""),
        (config.get("placement", {}), Placement, "placement."),
    ):
        known = [f.name for f in fields(schema) if f.name not in UNSTORED]
        if unknown := [key for key in node if key not in known]:
            raise UserError(
                f"{prefix}{unknown[0]}: there is no such key, nothing would read it."
                f"{nearest(unknown[0], known)} There are {', '.join(known)}"
            )
        if missing := [key for key in known if key not in node]:
            raise UserError(
                f"{prefix}{missing[0]} has been deleted, but every run has one: leave "
                f"out ~{prefix}{missing[0]}, or set it to null if it may be absent"
            )
    model = config["task"].get("model") if isinstance(config["task"], Mapping) else None
    if isinstance(model, str):
        raise UserError(
            f"task.model={model}: a model is chosen with a slash, task/model={model}; "
            "`parsgd list task/model` shows the choices"
        )
    if config["train_examples"] < 1:
        raise UserError(
            f"train_examples={config['train_examples']}: must be 1 or more, to measure "
            "the training loss of the readout"
        )


def _phases(value: Any) -> bool:
    return bool(value) and all(isinstance(item, Phase) for item in value)


def _block_momentum(
    config: Mapping[str, Any], allowed: Sequence[str]
) -> tuple[float | None, str]:
    """The eta of block momentum and where it comes from; None of other strategies."""
    node = config["strategy"]
    # Only of this function is known what the argument means.
    if not is_call_of(node, block_momentum):
        return None, ""
    eta = node.get("eta")
    if isinstance(eta, Mapping):
        source = str(eta["_target_"]).rpartition(".")[2]
        return call(eta, "strategy.eta", allowed=allowed), source
    return (1 - 1 / config["workers"], "1 - 1/W") if eta is None else (eta, "as given")


def _choices(config: Mapping[str, Any], eta: float | None, source: str) -> list[str]:
    """What the strategy does that the other lines do not say."""
    node, lines = config["strategy"], []
    if eta is not None:
        lines.append(f"block momentum eta {eta:g} ({source})")
    policy = node.get("momentum_policy")
    if isinstance(policy, str) and takes(node, "momentum_policy"):
        lines.append(f"local optimizer's state at the end of a round: {policy}")
    return lines


def _devices(value: Any) -> int | list[int] | None:
    numbers = value if isinstance(value, list) else [value]
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)
    if value is not None and not (numbers and whole):
        raise UserError(
            f"placement.devices={value}: give how many devices, as in 2, or which, as "
            "in [1,3]; null lets the placement choose"
        )
    return value
