"""Built-in models, and `as_model` for the user's own."""

from parsgd.models.base import Model, as_model
from parsgd.models.classifier import Classifier
from parsgd.models.conv import CNN, PatchConv
from parsgd.models.gpt import GPT
from parsgd.models.mlp import MLP, LogisticRegression, mlp_6_9m, mlp_258k

__all__ = [
    "CNN",
    "GPT",
    "MLP",
    "Classifier",
    "LogisticRegression",
    "Model",
    "PatchConv",
    "as_model",
    "mlp_6_9m",
    "mlp_258k",
]
