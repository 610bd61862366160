"""The schema of a run's config, and the resolvers that its values may use.

Only the plumbing (sizes, budget, seed) has a typed schema. An algorithm, an optimizer,
a task, a rule or a schedule is a call, ``_target_`` and arguments, whose schema is the
function's own signature. Two resolvers help:

``${default:32,${global_batch}}``
    32, unless one of the other values is given: then null;
``${steps:0.5}``
    that fraction of the run's optimizer steps, as a whole number; at least 1 if the
    fraction is not 0.
"""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf


@dataclass
class Placement:
    """Where workers run; see `parsgd.place`."""

    kind: str = "auto"
    devices: Any = None


@dataclass
class Config:
    """The config of a run. `parsgd.fit` explains the sizes and the budget."""

    task: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)
    compressor: Any = None
    feedback: Any = None
    scaling: dict[str, Any] = field(default_factory=dict)
    schedule: Any = None
    placement: Placement = field(default_factory=Placement)
    seed: int = 0
    workers: int = 1
    local_steps: int = 1
    worker_batch: int | None = None
    global_batch: int | None = None
    epochs: float | None = None
    samples: int | None = None
    rounds: int | None = None
    target_accuracy: float | None = None
    evaluations: int = 10
    train_examples: int = 10_000
    tail: str = "drop"
    micro_batches: int = 1
    max_bad_rounds: int = 3
    check_replicas: bool = False
    debug: bool = False


def register(steps: int | None = None) -> None:
    """Tell Hydra the schema and OmegaConf the resolvers. Repeating it does no harm.

    Args:
        steps: Optimizer steps of the run; before they are known ``${steps:0.5}`` stays
            what it is.
    """
    ConfigStore.instance().store(name="schema", node=Config)
    OmegaConf.register_new_resolver("default", _default, replace=True)

    def of_run(fraction: float) -> int | str:
        if steps is None:
            return f"${{steps:{fraction}}}"
        part = int(float(fraction) * steps)
        return max(part, 1) if fraction > 0 else part  # a share of a run is some of it

    OmegaConf.register_new_resolver("steps", of_run, replace=True)


def _default(value: Any, *others: Any) -> Any:
    return value if all(other is None for other in others) else None
