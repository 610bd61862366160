"""Bytes that a worker sends in one round, as closed formulas of shapes and W."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sparse_oracles import index_bytes


def all_reduced(shapes: Any, workers: int) -> float:
    """One all-reduce of float32 arrays."""
    return 2 * (workers - 1) / workers * 4 * sum(int(np.prod(s)) for s in shapes)


def one_bit_columns(shapes: Any, workers: int) -> float:
    """Gathered signs and a pair of levels per column of what shrinks; vectors dense."""
    total = 0.0
    for shape in shapes:
        size = int(np.prod(shape))
        packed = -(-size // 8) + 8 * shape[-1]
        if len(shape) > 1 and packed < 4 * size:
            total += (workers - 1) * packed
        else:
            total += all_reduced([shape], workers)
    return total


def gathered(payload: Callable[[int], float]) -> Callable[[Any, int], float]:
    """Bytes where matrices of n entries are gathered as payloads."""

    def sent(shapes, workers):
        vectors = [s for s in shapes if len(s) == 1]
        payloads = sum(payload(int(np.prod(s))) for s in shapes if len(s) > 1)
        return (workers - 1) * payloads + all_reduced(vectors, workers)

    return sent


def two_sided(payload: Callable[[int, int], float]) -> Callable[[Any, int], float]:
    """Bytes where payloads of stripes, of so many rows and columns, go out and back."""

    def sent(shapes, workers):
        total = 0.0
        for shape in shapes:
            rows, width = int(np.prod(shape[:-1])), -(-shape[-1] // workers)
            share = payload(rows, width)
            if len(shape) > 1 and workers * share < 4 * rows * shape[-1]:
                total += 2 * (workers - 1) * share
            else:
                total += all_reduced([shape], workers)
        return total

    return sent


def hierarchical(shapes: Any, workers: int) -> float:
    """Pairs halve each array, rings of a member of each average the halves."""
    group = 1 if workers % 2 else 2
    total, across = 0, workers // group
    for shape in shapes:
        part = -(-int(np.prod(shape)) // group)
        total += 2 * (group - 1) * part + 2 * (across - 1) * -(-part // across)
    return 4.0 * total


def sparse(density: float) -> Callable[[int], float]:
    """Payload of the k largest of n entries."""

    def payload(n):
        k = max(1, round(density * n))
        return 4 * k + index_bytes(k, n)

    return payload


def thin(shapes: Any, workers: int) -> float:
    """PowerSGD of rank 2: all-reduces of two rows and columns for each matrix."""
    sides = [
        (2 * (int(np.prod(s[:-1])) + s[-1]),) if len(s) > 1 else s
        for s in map(tuple, shapes)
    ]
    return all_reduced(sides, workers)


def fifth_reduced(shapes: Any, workers: int) -> float:
    """Random-k of a fifth, summed on the way."""
    kept = [(round(0.2 * int(np.prod(s))),) if len(s) > 1 else s for s in shapes]
    return all_reduced(kept, workers)


def pairwise(shapes: Any, workers: int) -> float:
    """Adasum: a message for each level of a power of two; the rest there and back."""
    core = 1 << (workers.bit_length() - 1)
    messages = core * (core.bit_length() - 1) + 2 * (workers - core)
    return messages / workers * 4 * sum(int(np.prod(s)) for s in shapes)


def demo_payload(shapes: Any, workers: int) -> float:
    """Two coefficients of each block of at most 4 x 4."""
    total = 0.0
    for shape in shapes:
        n = int(np.prod(shape))
        if len(shape) == 1:
            total += all_reduced([shape], workers)
            continue
        rows, columns = n // shape[-1], shape[-1]
        side = [max(d for d in range(1, 5) if m % d == 0) for m in (rows, columns)]
        k = 2 * n // (side[0] * side[1])
        total += (workers - 1) * (4 * k + index_bytes(k, n))
    return total
