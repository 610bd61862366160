"""Parallel SGD algorithms, each written as what one worker does."""

from parsgd.strategies.block_momentum import (
    block_filter,
    block_momentum,
    block_momentum_from_time_constant,
)
from parsgd.strategies.data_parallel import (
    data_parallel,
    one_bit_sgd,
    single,
    sync_sgd,
)
from parsgd.strategies.local import local_sgd, post_local_sgd
from parsgd.strategies.outer import OuterState, diloco, outer_loop

__all__ = [
    "OuterState",
    "block_filter",
    "block_momentum",
    "block_momentum_from_time_constant",
    "data_parallel",
    "diloco",
    "local_sgd",
    "one_bit_sgd",
    "outer_loop",
    "post_local_sgd",
    "single",
    "sync_sgd",
]
