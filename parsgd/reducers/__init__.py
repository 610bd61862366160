"""Reducers: optax transformations whose ``update`` communicates."""

from parsgd.reducers.feedback import FeedbackState, error_feedback
from parsgd.reducers.mean import all_reduce, idle

__all__ = ["FeedbackState", "all_reduce", "error_feedback", "idle"]
