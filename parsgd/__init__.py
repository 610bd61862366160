"""parsgd: research on parallel SGD in JAX.

An algorithm is written once, as what one worker does, and runs unchanged on simulated
workers and on devices; what it sends is counted from its own program.

    >>> import optax, parsgd
    >>> run = parsgd.fit(
    ...     parsgd.digits(), parsgd.local_sgd(optax.sgd(0.1)),
    ...     workers=4, local_steps=8, worker_batch=16, epochs=2)
    >>> run.status
    'completed'
"""

from parsgd import comm, traffic
from parsgd.compressors import one_bit
from parsgd.core import Phase, Strategy, TrainState
from parsgd.errors import UserError
from parsgd.placement import Placement, place
from parsgd.reducers import all_reduce, error_feedback
from parsgd.strategies import (
    block_momentum,
    data_parallel,
    diloco,
    local_sgd,
    one_bit_sgd,
    outer_loop,
    post_local_sgd,
    single,
    sync_sgd,
)
from parsgd.tasks import Batch, Task, classification, digits
from parsgd.train import Observer, Run, fit

__version__ = "0.1.0"
