"""What workers decode of payloads: the average, and whether it is finite."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from parsgd.compressors import Compressor
from parsgd.compressors.groups import largest
from parsgd.reducers import paths

UNROLLED = 16  # decoded one after the other in the program; more in a loop


def nan_unless_finite(v: jax.Array) -> jax.Array:
    """The array, or NaN everywhere if one of its entries is not finite.

    Compressors that choose entries would leave a NaN behind, unseen by the other
    workers.
    """
    return jnp.where(paths.finite(v), v, jnp.nan)


def mean_is_finite(compressor: Compressor, payloads: Any, mean: jax.Array) -> jax.Array:
    """Whether an average of gathered payloads ``[W, ...]`` is finite."""
    if not compressor.exposes_nonfinite:
        return paths.finite(mean)
    is_float = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    floats = [x.astype(jnp.float32) for x in jax.tree.leaves(payloads) if is_float(x)]
    most = [largest(x, tuple(range(1, x.ndim))) for x in floats if x.size]
    # The sum too must be finite, before it is divided by W.
    return paths.finite(*(jnp.sum(x) for x in most))


def mean_of_decoded(
    compressor: Compressor, payloads: Any, like: Any, key: jax.Array | None
) -> jax.Array:
    """Average of what W payloads ``[W, ...]`` stand for.

    They are added one after the other, so that all workers get the same bits.

    Args:
        compressor: The compressor.
        payloads: As `parsgd.comm.gather` stacks them.
        like: Has the shape and type of the average.
        key: Random key of all of them, if they share it.
    """
    decode, add = compressor.decode, compressor.add

    def added(total: jax.Array, payload: Any) -> jax.Array:
        if add is None:
            return total + decode(payload, like, key)
        return add(total, payload, key)

    workers = len(jax.tree.leaves(payloads)[0])
    if workers > UNROLLED:
        zero = jnp.zeros(like.shape, like.dtype)
        total, _ = jax.lax.scan(lambda t, p: (added(t, p), None), zero, payloads)
        return total / workers
    # One addition after the other fuses with the decoding.
    first, *rest = (jax.tree.map(lambda p, w=w: p[w], payloads) for w in range(workers))
    return functools.reduce(added, rest, decode(first, like, key)) / workers
