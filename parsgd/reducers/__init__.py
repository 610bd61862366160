"""Reducers: optax transformations whose ``update`` communicates.

With them stand what goes beside them in a chain: clipping, momentum of each worker's
own, delays, and skipping what is not finite.
"""

from parsgd.reducers.adasum import adasum
from parsgd.reducers.clip import clip
from parsgd.reducers.compressed import compressed_all_reduce
from parsgd.reducers.delay import DelayState, delay
from parsgd.reducers.demo import DeMoState, demo
from parsgd.reducers.dgc import DGCState, dgc
from parsgd.reducers.exchange import Exchange, ExchangeState, exchange
from parsgd.reducers.feedback import (
    EF21State,
    FeedbackState,
    ef21,
    error_feedback,
)
from parsgd.reducers.majority import majority_vote
from parsgd.reducers.mean import all_reduce
from parsgd.reducers.momentum import local_momentum
from parsgd.reducers.nonfinite import SkipState, skip_nonfinite
from parsgd.reducers.power_sgd import PowerSGDState, power_sgd

__all__ = [
    "DGCState",
    "DeMoState",
    "DelayState",
    "EF21State",
    "Exchange",
    "ExchangeState",
    "FeedbackState",
    "PowerSGDState",
    "SkipState",
    "adasum",
    "all_reduce",
    "clip",
    "compressed_all_reduce",
    "delay",
    "demo",
    "dgc",
    "ef21",
    "error_feedback",
    "exchange",
    "local_momentum",
    "majority_vote",
    "power_sgd",
    "skip_nonfinite",
]
