"""Several processes as one run, on one machine or many."""

from parsgd.cluster.group import (
    agree,
    busy,
    exchange,
    failing,
    is_first,
    leave,
    process,
    processes,
    sharing_cores,
    started,
    stuck,
    together,
)
from parsgd.cluster.join import start
from parsgd.cluster.rendezvous import Settings

__all__ = [
    "Settings",
    "agree",
    "busy",
    "exchange",
    "failing",
    "is_first",
    "leave",
    "process",
    "processes",
    "sharing_cores",
    "start",
    "started",
    "stuck",
    "together",
]
