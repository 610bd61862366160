"""Values of a few entries back in their places."""

from typing import Any

import jax
import jax.numpy as jnp

from parsgd.compressors.index_packing import pack_indices, unpack_indices


def packed(index: jax.Array, n: int) -> jax.Array | None:
    """`pack_indices`; None where all n entries are sent."""
    return None if index.size == n else pack_indices(index, n)


def scattered(values: jax.Array, indices: jax.Array | None, like: Any) -> jax.Array:
    """Zeros in ``like``'s shape, but for values at the indices of `packed`."""
    if indices is None:
        return values.reshape(like.shape).astype(like.dtype)
    return scatter(values, unpack_indices(indices, values.size, like.size), like)


def added(total: jax.Array, values: jax.Array, indices: jax.Array | None) -> jax.Array:
    """A total with values added at the indices of `packed`."""
    if indices is None:
        return total + values.reshape(total.shape)
    index = unpack_indices(indices, values.size, total.size)
    v = total.reshape(-1).at[index]
    v = v.add(values, unique_indices=True, indices_are_sorted=True)
    return v.reshape(total.shape)


def scatter(values: jax.Array, index: jax.Array, like: Any) -> jax.Array:
    """Zeros in ``like``'s shape, but for values at ascending indices."""
    v = jnp.zeros(like.size, jnp.float32)
    v = v.at[index].set(values, unique_indices=True, indices_are_sorted=True)
    return v.reshape(like.shape).astype(like.dtype)
