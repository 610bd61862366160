"""The two-sided exchange of 1-bit SGD, in which owners encode averages again.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
Distributed Training of Speech DNNs", Interspeech 2014. Worker r owns stripe r of each
array: it averages the W payloads of its stripe, adds its own residual, encodes the
average and sends that to all.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from parsgd import comm
from parsgd.compressors import Compressor
from parsgd.compressors.base import Payload
from parsgd.reducers import paths
from parsgd.reducers.decoding import mean_is_finite, mean_of_decoded, nan_unless_finite
from parsgd.reducers.paths import Arrays
from parsgd.reducers.stripes import real_columns, stripes_of, unstriped


def encoded(
    compressor: Compressor, x: jax.Array, zeros: jax.Array | None, key: jax.Array | None
) -> Payload:
    """Payload of an array that contains ``zeros`` padding entries.

    Args:
        compressor: Encodes; without ``encode_padded`` it counts them like other zeros.
        x: The array.
        zeros: How many entries are padding, int32 scalar; None for none.
        key: Random key of the compressor, or None.
    """
    if zeros is None or compressor.encode_padded is None:
        return compressor.encode(x, key)
    return compressor.encode_padded(x, zeros, key)


def exchange_stripes(
    compressor: Compressor,
    arrays: Arrays,
    live: Arrays,
    keys: dict[str, jax.Array | None],
    owner_error: Arrays,
) -> tuple[Arrays, Arrays, Arrays, Arrays]:
    """Average arrays through the owners of their stripes.

    Args:
        compressor: Encodes the arrays and then their averages.
        arrays: By path; zero where they are not live.
        live: Masks of the entries that count, by path; without one all count.
        keys: Random keys by path, or None.
        owner_error: Residuals of this worker's stripes.

    Returns:
        The averages, what this worker's payloads stand for, whether the averages are
        finite, and the new residuals of this worker's stripes.
    """
    world = comm.world()
    like, payload, sent, answer, rest, real, zeros = {}, {}, {}, {}, {}, {}, {}
    drawn = {
        path: (None, None) if key is None else _split(key, world)
        for path, key in keys.items()
    }
    for path, v in arrays.items():
        stripes = stripes_of(v, world)
        one = like[path] = jax.ShapeDtypeStruct(stripes.shape[1:], v.dtype)
        real[path], zeros[path] = _real(stripes, live.get(path), v)
        encode = jax.vmap(lambda x, n, key: encoded(compressor, x, n, key))
        payload[path] = encode(stripes, zeros[path], drawn[path][1])
        decoded = jax.vmap(lambda p, one=one: compressor.decode(p, one, None))
        sent[path] = unstriped(decoded(payload[path]), v)
    for path, mine in comm.all_to_all(payload).items():
        total = mean_of_decoded(compressor, mine, like[path], None) + owner_error[path]
        # Bits of padding decode to something, which nobody is owed.
        own = real[path][comm.rank()]
        total = nan_unless_finite(jnp.where(own, total, 0.0))
        count = jnp.asarray(zeros[path])[comm.rank()]
        answer[path] = encoded(compressor, total, count, drawn[path][0])
        left = total - compressor.decode(answer[path], like[path], None)
        rest[path] = jnp.where(own, left, 0.0)
    mean, good, kept = {}, {}, {}
    for path, all_stripes in comm.gather(answer).items():
        one = like[path]
        decoded = jax.vmap(lambda p, one=one: compressor.decode(p, one, None))
        mean[path] = unstriped(decoded(all_stripes), arrays[path])
        good[path] = mean_is_finite(compressor, all_stripes, mean[path])
        # What another owner's stripe spoils is not applied here either.
        on = good[path] & paths.finite(rest[path])
        kept[path] = optax.tree.where(on, rest[path], owner_error[path])
    return mean, sent, good, kept


def _real(
    stripes: jax.Array, live: jax.Array | None, v: jax.Array
) -> tuple[jax.Array, jax.Array | np.ndarray]:
    """Which entries count, ``[W, rows, columns]``, and how many of a stripe do not."""
    world, rows, width = stripes.shape
    if live is not None:
        real = stripes_of(live, world)
        return real, jnp.sum(~real, axis=(1, 2), dtype=jnp.int32)
    columns = real_columns(v, world)
    inside = jnp.arange(width)[None] < jnp.asarray(columns)[:, None]
    real = jnp.broadcast_to(inside[:, None], stripes.shape)
    return real, rows * (width - columns)


def _split(key: jax.Array, world: int) -> tuple[jax.Array, jax.Array]:
    """A key for the answer, and one for each stripe."""
    keys = jax.random.split(key, world + 1)
    return keys[0], keys[1:]
