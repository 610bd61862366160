"""Stripes of an array, one for each worker that owns a part of an average."""

import jax
import jax.numpy as jnp
import numpy as np


def stripes_of(x: jax.Array, workers: int) -> jax.Array:
    """An array's columns in W equal parts, ``[W, rows, columns / W]``, zeros added.

    Columns (all that feeds one output) stay whole; a vector's entries are its columns.
    """
    rows = x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x.reshape(1, -1)
    width = -(-rows.shape[1] // workers)
    rows = jnp.pad(rows, ((0, 0), (0, workers * width - rows.shape[1])))
    return rows.reshape(len(rows), workers, width).swapaxes(0, 1)


def real_columns(x: jax.Array, workers: int) -> np.ndarray:
    """How many columns of each stripe are the array's and no padding, ``int32 [W]``."""
    columns = x.shape[-1] if x.ndim else 1
    width = -(-columns // workers)
    return np.clip(columns - width * np.arange(workers), 0, width).astype(np.int32)


def unstriped(stripes: jax.Array, like: jax.Array) -> jax.Array:
    """Inverse of `stripes_of`, for an array of ``like``'s shape."""
    rows = stripes.swapaxes(0, 1).reshape(stripes.shape[1], -1)
    columns = like.shape[-1] if like.ndim else 1
    return rows[:, :columns].reshape(like.shape)
