"""Lossy codes for gradients: ``encode`` to the packed arrays sent, and back."""

from parsgd.compressors.base import Compressor, payload_bytes, pays
from parsgd.compressors.sign import OneBit, one_bit
from parsgd.compressors.sparse import RandomK, Sparse, random_k, threshold, top_k

__all__ = [
    "Compressor",
    "OneBit",
    "RandomK",
    "Sparse",
    "one_bit",
    "payload_bytes",
    "pays",
    "random_k",
    "threshold",
    "top_k",
]
