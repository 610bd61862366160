"""Sparse codes in numpy, from their definitions; bits as Python strings."""

import math

import numpy as np


def count(density, n):
    """k: the share of n entries, rounded to even, at least one."""
    return 0 if n == 0 else max(1, round(density * n))


def largest(v, k):
    """Indices of the k largest magnitudes, first ones first among equals; NaN last."""
    magnitude = np.where(np.isnan(v), -1.0, np.abs(v))
    return np.sort(np.argsort(-magnitude, kind="stable")[:k])


def sparse(v, index):
    out = np.zeros_like(v)
    out[index] = v[index]
    return out


def top_k(x, density):
    v = np.asarray(x, np.float32).reshape(-1)
    return sparse(v, largest(v, count(density, v.size))).reshape(x.shape)


def threshold(x, tau, density):
    v = np.asarray(x, np.float32).reshape(-1)
    index = largest(v, count(density, v.size))
    index = index[np.abs(v[index]) >= tau]
    return sparse(v, index).reshape(x.shape), len(index)


def elias_fano_bits(index, low):
    """The low bits of each index, lowest first; then the rest in unary.

    ``index >> low`` is the number of zeros before the index's one, which the steps
    from one index to the next add up to.
    """
    lower = "".join(f"{i % 2**low:0{low}b}"[::-1] if low else "" for i in index)
    upper, before = "", 0
    for i in index:
        upper += "0" * (i // 2**low - before) + "1"
        before = i // 2**low
    return lower, upper


def bytes_of(bits):
    """Bits to bytes, the first in the lowest bit of the first byte."""
    bits += "0" * (-len(bits) % 8)
    return [int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8)]


def index_bytes(k, n):
    """The shortest of numbers, bitmap and Elias-Fano with any number of low bits."""
    if k in (0, n):
        return 0
    up = lambda bits: math.ceil(bits / 8)
    width = math.ceil(math.log2(n))
    coded = [up(k * m) + up(k + math.floor((n - 1) / 2**m)) for m in range(width + 1)]
    return min(up(k * width), up(n), *coded)


def with_feedback(gradients, density):
    """Sparsified SGD with memory: the averages sent, and the residuals, by step.

    Args:
        gradients: ``[T, W, ...]``.
        density: Share of the entries that each worker sends.
    """
    memory = np.zeros_like(gradients[0])
    for g in gradients:
        total = memory + g
        sent = np.stack([top_k(v, density) for v in total])
        memory = total - sent
        yield sent.mean(0), memory.copy()
