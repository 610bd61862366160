"""Data sets and the order in which workers read them."""

from parsgd.data.breast_cancer import load_breast_cancer
from parsgd.data.csv import load_csv
from parsgd.data.dataset import Dataset, Split, Standardize, validate
from parsgd.data.digits import load_digits
from parsgd.data.fashion_mnist import load_fashion_mnist
from parsgd.data.npz import load_npz
from parsgd.data.order import Order
from parsgd.data.shards import fixed_shards
from parsgd.data.synthetic import make_synthetic
from parsgd.data.text import load_text

__all__ = [
    "Dataset",
    "Order",
    "Split",
    "Standardize",
    "fixed_shards",
    "load_breast_cancer",
    "load_csv",
    "load_digits",
    "load_fashion_mnist",
    "load_npz",
    "load_text",
    "make_synthetic",
    "validate",
]
