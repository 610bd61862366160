"""State that reducers keep for each leaf, named by its path and checked against it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

Arrays = dict[str, jax.Array]


def split(tree: Any, chosen: Callable[[Any], bool]) -> tuple[Arrays, Arrays]:
    """The leaves that are chosen, and the others, by path."""
    yes: Arrays = {}
    no: Arrays = {}
    for path, x in jax.tree.leaves_with_path(tree):
        (yes if chosen(x) else no)[jax.tree_util.keystr(path)] = x
    return yes, no


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


def keep_unless(good: jax.Array, new: Any, old: Any) -> Any:
    """``new`` where the step was good, else ``old``; any tree."""
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)


def finite(*arrays: jax.Array) -> jax.Array:
    """Whether every entry is finite, a boolean scalar."""
    good = jnp.bool_(True)
    for x in arrays:
        good &= jnp.all(jnp.isfinite(x))
    return good
