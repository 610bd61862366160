"""Reducers: optax transformations whose ``update`` communicates."""

from parsgd.reducers.compressed import compressed_all_reduce
from parsgd.reducers.exchange import Exchange, ExchangeState, exchange
from parsgd.reducers.feedback import (
    EF21State,
    FeedbackState,
    ef21,
    error_feedback,
)
from parsgd.reducers.mean import all_reduce, idle

__all__ = [
    "EF21State",
    "Exchange",
    "ExchangeState",
    "FeedbackState",
    "all_reduce",
    "compressed_all_reduce",
    "ef21",
    "error_feedback",
    "exchange",
    "idle",
]
