"""State that reducers keep for each leaf, named by its path and checked against it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Arrays = dict[str, jax.Array]


class Leaf(NamedTuple):
    """How a reducer sends a leaf.

    Attributes:
        shape: Of the leaf.
        dtype: Of the leaf.
        how: In words, such as ``"compressed"``.
    """

    shape: tuple[int, ...]
    dtype: str
    how: str


_LEAVES: ContextVar[dict[str, Leaf] | None] = ContextVar("leaves", default=None)


@contextlib.contextmanager
def noted() -> Iterator[dict[str, Leaf]]:
    """Note how leaves are sent, by path, in what reducers trace meanwhile."""
    leaves: dict[str, Leaf] = {}
    token = _LEAVES.set(leaves)
    try:
        yield leaves
    finally:
        _LEAVES.reset(token)


def note(path: Any, x: Any, why_raw: str, how: str = "compressed") -> None:
    """Tell how a leaf is sent, or why as it is, if somebody asks."""
    if (leaves := _LEAVES.get()) is not None:
        how = f"as it is: {why_raw}" if why_raw else how
        leaves[jax.tree_util.keystr(path)] = Leaf(x.shape, str(x.dtype), how)


def split(tree: Any, why_raw: Callable[[Any], str]) -> tuple[Arrays, Arrays]:
    """The leaves that are compressed, and the others, by path.

    Args:
        tree: Of gradients or parameters.
        why_raw: The reason for which a leaf is not compressed; empty if it is.
    """
    compressed: Arrays = {}
    raw: Arrays = {}
    for path, x in jax.tree.leaves_with_path(tree):
        why = why_raw(x)
        note(path, x, why)
        (raw if why else compressed)[jax.tree_util.keystr(path)] = x
    return compressed, raw


def join(arrays: Arrays, like: Any) -> Any:
    """The tree of `split` again, in the types of ``like``."""
    return jax.tree.map_with_path(
        lambda path, x: arrays[jax.tree_util.keystr(path)].astype(x.dtype), like
    )


def zeros(arrays: Mapping[str, Any]) -> Arrays:
    """Zeros of the same shapes, ``float32``."""
    return {path: jnp.zeros(x.shape, jnp.float32) for path, x in arrays.items()}


def check(what: str, kept: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Refuse state that is not this model's.

    Raises:
        ValueError: A leaf without state of its shape; names its path.
    """
    for path in sorted({*kept, *arrays}):
        x = arrays.get(path)
        if x is None:
            raise ValueError(
                f"the {what} of {path} belongs to no leaf: the state is another "
                f"model's (this one has {sorted(arrays)}); initialise it anew"
            )
        if path not in kept or kept[path].shape != x.shape:
            raise ValueError(
                f"no {what} of shape {x.shape} for {path}: the state belongs to "
                f"another model (it has {sorted(kept)}); initialise it anew"
            )


def finite(*arrays: jax.Array) -> jax.Array:
    """Whether every entry is finite, a boolean scalar."""
    good = jnp.bool_(True)
    for x in arrays:
        good &= jnp.all(jnp.isfinite(x))
    return good
