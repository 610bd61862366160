"""Tasks: what is learned, as the pure functions that training needs."""

from parsgd.tasks.base import Batch, Task, classification
from parsgd.tasks.builtin import (
    breast_cancer,
    csv,
    digits,
    fashion_mnist,
    npz,
    synthetic,
    text,
)

__all__ = [
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
]
