"""Data sets and the order in which workers read them."""

from parsgd.data.dataset import Dataset, Split, Standardize, validate
from parsgd.data.digits import load_digits
from parsgd.data.order import Order

__all__ = ["Dataset", "Order", "Split", "Standardize", "load_digits", "validate"]
