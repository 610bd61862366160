"""Lossy codes for gradients: ``encode`` to the packed arrays sent, and back."""

from parsgd.compressors.base import Compressor, payload_bytes, pays
from parsgd.compressors.sign import OneBit, one_bit

__all__ = ["Compressor", "OneBit", "one_bit", "payload_bytes", "pays"]
