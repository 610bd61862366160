"""A state as named arrays that can be stored, and back.

Leaves are named by their path, such as ``strategy/0/trace/w1``. Random keys are stored
as their data. Arrays without elements, which Orbax does not store, are only described.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parsgd.core import TrainState


class Leaf(NamedTuple):
    """What is known of a leaf without reading it; JSON keeps it as a list.

    Attributes:
        shape: As it is stored: all workers' in front if each has its own.
        dtype: Name of its type; for keys that of their data.
        shared: Whether all workers have the same.
        key: Type of random keys, such as ``key<fry>``; None for an array.
    """

    shape: tuple[int, ...]
    dtype: str
    shared: bool
    key: str | None = None


def from_json(stored: Mapping[str, Any]) -> dict[str, Leaf]:
    """The description of a stored state again."""
    return {
        name: Leaf(tuple(shape), *others) for name, (shape, *others) in stored.items()
    }


def names(tree: Any) -> list[str]:
    """A readable name for each leaf, unique within the tree."""
    paths = [path for path, _ in jax.tree.leaves_with_path(tree)]
    short = [jax.tree_util.keystr(p, simple=True, separator="/") for p in paths]
    if len({*short}) == len(short):
        return short
    # A key holds a slash: as in JSON pointers.
    return ["/".join(map(_part, path)) for path in paths]


def _part(key: Any) -> str:
    text = jax.tree_util.keystr((key,), simple=True)
    return text.replace("~", "~0").replace("/", "~1")


def describe(state: TrainState, shared: TrainState) -> dict[str, Leaf]:
    """A `Leaf` for each leaf of all workers' state."""
    same = jax.tree.leaves(shared)
    out = {}
    for name, x, s in zip(names(state), jax.tree.leaves(state), same, strict=True):
        kind = str(x.dtype) if _is_key(x) else None
        data = _data(x)
        out[name] = Leaf(tuple(data.shape), str(data.dtype), bool(s), kind)
    return out


def pack(state: TrainState) -> dict[str, jax.Array]:
    """Copies of the arrays to store, by name.

    Copies, because the next round reuses the buffers of the state while these are being
    written.
    """
    found = zip(names(state), map(_data, jax.tree.leaves(state)), strict=True)
    return {name: jnp.copy(x) for name, x in found if x.size}


def abstract(template: TrainState) -> dict[str, jax.ShapeDtypeStruct]:
    """What `pack` gives, as shapes, types and places on the devices."""
    out = {}
    for name, x in zip(names(template), jax.tree.leaves(template), strict=True):
        data = _data(x)
        if data.size:
            out[name] = jax.ShapeDtypeStruct(
                data.shape, data.dtype, sharding=data.sharding
            )
    return out


def unpack(template: TrainState, arrays: Mapping[str, jax.Array]) -> TrainState:
    """The state again; what is not stored comes from the template."""
    old, tree = jax.tree.flatten(template)
    new = [
        _like(arrays[name], x) if name in arrays else x
        for name, x in zip(names(template), old, strict=True)
    ]
    return jax.tree.unflatten(tree, new)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _data(x: Any) -> Any:
    if not _is_key(x):
        return x
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.eval_shape(jax.random.key_data, x)
    return jax.random.key_data(x)


def _like(array: jax.Array, x: Any) -> jax.Array:
    if _is_key(x):
        data = jnp.asarray(array)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    return array
