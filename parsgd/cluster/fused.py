"""Arrays of one type sent as one array, where each message costs a round trip."""

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from parsgd.cluster.group import processes

Tree = TypeVar("Tree")

# Bytes of a message. On two devices of a 2-core Intel Xeon, MLPs and a CNN had the same
# speed with 128 to 512 KiB, 1.05 to 2.2 times that of one message for each array, and
# with 1 MiB one MLP a fortieth of it (jax 0.10.2, medians of 7 windows).
SMALL = 256 << 10
# Below 0 nothing fits, and each array is a message of its own.
_largest: ContextVar[float] = ContextVar("_largest", default=-1)


def small_together(fn: Callable) -> Callable:
    """``fn``, whose collectives send small arrays of one type as one array.

    For the CPU devices of one process. They are threads that meet for each array, which
    takes longer than to copy a small one. XLA divides a large copy over its threads,
    but these wait for the message in the other devices.
    """

    def run(*args):
        before = _largest.set(SMALL)
        try:
            return fn(*args)
        finally:
            _largest.reset(before)

    return run


def _sent_together() -> float:
    """Bytes of the largest message of several arrays.

    Between processes on CPU all are: gloo pays a round trip for each array, and waits
    between them.
    """
    if processes() > 1 and jax.default_backend() == "cpu":
        return math.inf
    return _largest.get()


def by_type(
    send: Callable[[jax.Array], jax.Array],
    tree: Tree,
    chosen: Callable[[jax.Array], bool] = lambda x: True,
    after: Callable[[jax.Array], jax.Array] = lambda x: x,
    lead: int = 0,
) -> Tree:
    """``send`` of the chosen leaves, of a type as one array where that pays.

    Args:
        send: A collective that keeps an array's own axes, after those that it adds.
        tree: Leaves.
        chosen: Which of them are sent; others stay.
        after: What becomes of the result, in the leaf's own shape.
        lead: First axes that mean something to ``send``, the same in all leaves.
    """
    leaves, structure = jax.tree.flatten(tree)
    largest = _sent_together()
    messages: list[list[int]] = []
    filling: dict[Any, list[int]] = {}  # the last message of each type
    room: dict[Any, float] = {}
    for i, x in enumerate(leaves):
        if not chosen(x):
            continue
        leaves[i] = x = jnp.asarray(x)
        size = x.size * x.dtype.itemsize
        if size > largest:
            messages.append([i])
            continue
        if size > room.get(x.dtype, -1):
            filling[x.dtype], room[x.dtype] = [], largest
            messages.append(filling[x.dtype])
        filling[x.dtype].append(i)
        room[x.dtype] -= size
    for places in messages:
        if len(places) == 1:
            leaves[places[0]] = after(send(leaves[places[0]]))
            continue
        rows = [leaves[i].reshape(*leaves[i].shape[:lead], -1) for i in places]
        sent, start = send(jnp.concatenate(rows, axis=-1)), 0
        added = sent.shape[: sent.ndim - 1 - lead]
        for i, row in zip(places, rows, strict=True):
            part = sent[..., start : start + row.shape[-1]]
            leaves[i] = after(part.reshape(*added, *leaves[i].shape))
            start += row.shape[-1]
    return jax.tree.unflatten(structure, leaves)
