"""Lossy compressors for gradients: ``encode`` to the packed arrays sent, and back."""

from parsgd.compressors.base import Compressor, payload_bytes
from parsgd.compressors.casts import FP8, bf16, fp8, fp16
from parsgd.compressors.eight_bit import EightBit, dynamic_tree_8bit, linear_8bit
from parsgd.compressors.natural import Natural, natural
from parsgd.compressors.qsgd import QSGD, qsgd
from parsgd.compressors.sign import OneBit, ScaledSign, one_bit, scaled_sign, sign
from parsgd.compressors.sparse import RandomK, Sparse, random_k, threshold, top_k
from parsgd.compressors.terngrad import TernGrad, terngrad

__all__ = [
    "FP8",
    "QSGD",
    "Compressor",
    "EightBit",
    "Natural",
    "OneBit",
    "RandomK",
    "ScaledSign",
    "Sparse",
    "TernGrad",
    "bf16",
    "dynamic_tree_8bit",
    "fp8",
    "fp16",
    "linear_8bit",
    "natural",
    "one_bit",
    "payload_bytes",
    "qsgd",
    "random_k",
    "scaled_sign",
    "sign",
    "terngrad",
    "threshold",
    "top_k",
]
