"""parsgd: research on parallel SGD in JAX.

An algorithm is written once, as what one worker does, and runs unchanged on simulated
workers and on devices; what it sends is counted from its own program.

    >>> import optax, parsgd
    >>> run = parsgd.fit(
    ...     parsgd.digits(), parsgd.local_sgd(optax.sgd(0.1)),
    ...     workers=4, local_steps=8, worker_batch=16, epochs=2)
    >>> run.status
    'completed'

Names are imported at their first use: the command's help and lists need no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parsgd import (
        cluster,
        comm,
        compressors,
        models,
        reducers,
        scaling,
        strategies,
        traffic,
    )
    from parsgd.checkpoint import Checkpoints
    from parsgd.compressors import one_bit
    from parsgd.core import Phase, Strategy, TrainState
    from parsgd.errors import UserError
    from parsgd.placement.devices import Placement, place
    from parsgd.reducers import (
        all_reduce,
        compressed_all_reduce,
        ef21,
        error_feedback,
    )
    from parsgd.strategies import (
        block_momentum,
        block_momentum_from_time_constant,
        compressed_sgd,
        data_parallel,
        dgc_sgd,
        diloco,
        ef_sign_sgd,
        local_sgd,
        one_bit_adam,
        one_bit_sgd,
        outer_loop,
        post_local_sgd,
        sign_sgd_majority,
        single,
        sync_sgd,
        zero_one_adam,
    )
    from parsgd.tasks import (
        Batch,
        Task,
        breast_cancer,
        classification,
        csv,
        digits,
        fashion_mnist,
        npz,
        synthetic,
        text,
    )
    from parsgd.train import Run, fit
    from parsgd.training.observer import Observer

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Checkpoints",
    "Observer",
    "Phase",
    "Placement",
    "Run",
    "Strategy",
    "Task",
    "TrainState",
    "UserError",
    "all_reduce",
    "block_momentum",
    "block_momentum_from_time_constant",
    "breast_cancer",
    "classification",
    "cluster",
    "comm",
    "compressed_all_reduce",
    "compressed_sgd",
    "compressors",
    "csv",
    "data_parallel",
    "dgc_sgd",
    "digits",
    "diloco",
    "ef21",
    "ef_sign_sgd",
    "error_feedback",
    "fashion_mnist",
    "fit",
    "local_sgd",
    "models",
    "npz",
    "one_bit",
    "one_bit_adam",
    "one_bit_sgd",
    "outer_loop",
    "place",
    "post_local_sgd",
    "reducers",
    "scaling",
    "sign_sgd_majority",
    "single",
    "strategies",
    "sync_sgd",
    "synthetic",
    "text",
    "traffic",
    "zero_one_adam",
]

# Where the names of __all__ stand; the others are modules of their own.
_HOMES = {
    "checkpoint": ("Checkpoints",),
    "compressors": ("one_bit",),
    "core": ("Phase", "Strategy", "TrainState"),
    "errors": ("UserError",),
    "placement.devices": ("Placement", "place"),
    "reducers": ("all_reduce", "compressed_all_reduce", "ef21", "error_feedback"),
    "strategies": (
        "block_momentum",
        "block_momentum_from_time_constant",
        "compressed_sgd",
        "data_parallel",
        "dgc_sgd",
        "diloco",
        "ef_sign_sgd",
        "local_sgd",
        "one_bit_adam",
        "one_bit_sgd",
        "outer_loop",
        "post_local_sgd",
        "sign_sgd_majority",
        "single",
        "sync_sgd",
        "zero_one_adam",
    ),
    "tasks": (
        "Batch",
        "Task",
        "breast_cancer",
        "classification",
        "csv",
        "digits",
        "fashion_mnist",
        "npz",
        "synthetic",
        "text",
    ),
    "train": ("Run", "fit"),
    "training.observer": ("Observer",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOME.get(name, name)}")
    value = getattr(module, name) if name in _HOME else module
    globals()[name] = value  # from now on without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
