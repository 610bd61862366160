"""Parallel SGD algorithms, each written as what one worker does."""

from parsgd.strategies.block_momentum import (
    block_filter,
    block_momentum,
    block_momentum_from_time_constant,
)
from parsgd.strategies.compressed import (
    compressed_sgd,
    ef_sign_sgd,
    one_bit_sgd,
    sign_sgd_majority,
)
from parsgd.strategies.data_parallel import data_parallel, single, sync_sgd
from parsgd.strategies.dgc import dgc_sgd
from parsgd.strategies.local import local_sgd, post_local_sgd
from parsgd.strategies.one_bit_adam import OneBitAdamState, one_bit_adam
from parsgd.strategies.outer import OuterState, diloco, outer_loop
from parsgd.strategies.zero_one_adam import ZeroOneAdamState, zero_one_adam

__all__ = [
    "OneBitAdamState",
    "OuterState",
    "ZeroOneAdamState",
    "block_filter",
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
]
