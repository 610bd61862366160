"""The schema of a run's config, and the resolvers that its values may use.

Only the plumbing (sizes, budget, seed) has a typed schema. An algorithm, an optimizer,
a task, a rule or a schedule is a call, ``_target_`` and arguments, whose schema is the
function's own signature. Three resolvers help:

``${default:32,${global_batch}}``
    32, unless one of the other values is given: then null;
``${steps:0.5}``
    that fraction of the run's optimizer steps, as a whole number; at least 1 if the
    fraction is not 0;
``${started:%H-%M-%S}``
    when the command was started, the same in all of its processes.
"""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from parsgd import cluster


@dataclass
class Placement:
    """Where workers run; see `parsgd.place`."""

    kind: str = "auto"
    devices: Any = None


@dataclass
class Cluster:
    """How several processes find each other; `parsgd.cluster.rendezvous`."""

    kind: str = "auto"
    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    timeout: float = 60.0


@dataclass
class Checkpoint:
    """When a run saves; see `parsgd.Checkpoints`. Never, if the first three say so."""

    rounds: int | None = None
    minutes: float | None = None
    keep_best: int = 0
    keep_last: int = 2
    step: str = "latest"
    force: bool = False


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
    cluster: Cluster = field(default_factory=Cluster)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
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
    shards: str = "reshuffled"
    label_skew: float = 0.0
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
    # Cached in the config: the processes of a sweep's jobs get what was resolved here.
    OmegaConf.register_new_resolver(
        "started", cluster.started, use_cache=True, replace=True
    )

    def of_run(fraction: float) -> int | str:
        if steps is None:
            return f"${{steps:{fraction}}}"
        part = int(round(float(fraction) * steps, 6))  # 0.29 x 100 is 29, not 28
        return max(part, 1) if fraction > 0 else part  # a share of a run is some of it

    OmegaConf.register_new_resolver("steps", of_run, replace=True)


def _default(value: Any, *others: Any) -> Any:
    return value if all(other is None for other in others) else None


# Also where a launcher starts a process for a job, which imports this first.
register()
