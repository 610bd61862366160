"""Arrays of one type sent as one array, where each message costs a round trip."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from parsgd.cluster.group import processes

Tree = TypeVar("Tree")


def _fuses() -> bool:
    """Whether arrays of one type are sent as one.

    Between processes on CPU: gloo pays a round trip for each array, and waits between
    them.
    """
    return processes() > 1 and jax.default_backend() == "cpu"


def by_type(
    send: Callable[[jax.Array], jax.Array],
    tree: Tree,
    chosen: Callable[[jax.Array], bool] = lambda x: True,
    after: Callable[[jax.Array], jax.Array] = lambda x: x,
    lead: int = 0,
) -> Tree:
    """``send`` of the chosen leaves, those of a type as one array where that pays.

    Args:
        send: A collective that keeps an array's own axes, after those that it adds.
        tree: Leaves.
        chosen: Which of them are sent; others stay.
        after: What becomes of the result, in the leaf's own shape.
        lead: First axes that mean something to ``send``, the same in all leaves.
    """
    leaves, structure = jax.tree.flatten(tree)
    if not _fuses():
        leaves = [after(send(x)) if chosen(x) else x for x in leaves]
        return jax.tree.unflatten(structure, leaves)
    types: dict[Any, list[int]] = {}
    for i, x in enumerate(leaves):
        if chosen(x):
            leaves[i] = jnp.asarray(x)
            types.setdefault(leaves[i].dtype, []).append(i)
    for places in types.values():
        rows = [leaves[i].reshape(*leaves[i].shape[:lead], -1) for i in places]
        sent, start = send(jnp.concatenate(rows, axis=-1)), 0
        added = sent.shape[: sent.ndim - 1 - lead]
        for i, row in zip(places, rows, strict=True):
            part = sent[..., start : start + row.shape[-1]]
            leaves[i] = after(part.reshape(*added, *leaves[i].shape))
            start += row.shape[-1]
    return jax.tree.unflatten(structure, leaves)
