"""Checkpoints: the whole state of a run on disk, and how a run goes on from it.

A checkpoint holds every worker's parameters, the state of both optimizers, residuals,
anchors, delay lines, random keys and the position in the data, and the records so far.
A run that goes on from one ends bit for bit where the undisturbed run ends. Orbax
writes them: in the background, and so that a reader sees all of one or nothing.

Only `settings` is imported before a run asks for checkpoints: Orbax takes seconds.
"""

from parsgd.checkpoint.settings import Checkpoints

__all__ = ["Checkpoints"]
