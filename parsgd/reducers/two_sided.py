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
from parsgd.reducers.stripes import real_columns, stripes_of, unstriped

Arrays = dict[str, jax.Array]


def encoded(
    code: Compressor, x: jax.Array, zeros: jax.Array | None, key: jax.Array | None
) -> Payload:
    """The payload of an array, of which so many entries are zeros that stand for none.

    Args:
        code: What encodes; one without ``encode_padded`` counts them as others.
        x: The array.
        zeros: How many, int32 scalar; None for none.
        key: What it draws with.
    """
    if zeros is None or code.encode_padded is None:
        return code.encode(x, key)
    return code.encode_padded(x, zeros, key)


def exchange_stripes(
    code: Compressor,
    arrays: Arrays,
    live: Arrays,
    keys: dict[str, jax.Array | None],
    owner_error: Arrays,
) -> tuple[Arrays, Arrays, Arrays, Arrays]:
    """Average arrays through the owners of their stripes.

    Args:
        code: What encodes, twice.
        arrays: By path; zero where they are not live.
        live: Masks of the entries that count, by path; all where there is none.
        keys: What to draw with.
        owner_error: What this worker's stripes still owe.

    Returns:
        The averages, what this worker's arrays were sent as, whether the averages are
        finite, and what this worker's stripes owe now.
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
        encode = jax.vmap(lambda x, n, key: encoded(code, x, n, key))
        payload[path] = encode(stripes, zeros[path], drawn[path][1])
        decoded = jax.vmap(lambda p, one=one: code.decode(p, one, None))
        sent[path] = unstriped(decoded(payload[path]), v)
    for path, mine in comm.all_to_all(payload).items():
        total = mean_of_decoded(code, mine, like[path], None) + owner_error[path]
        # Bits of padding decode to something, which nobody is owed.
        own = real[path][comm.rank()]
        total = nan_unless_finite(jnp.where(own, total, 0.0))
        count = jnp.asarray(zeros[path])[comm.rank()]
        answer[path] = encoded(code, total, count, drawn[path][0])
        left = total - code.decode(answer[path], like[path], None)
        rest[path] = jnp.where(own, left, 0.0)
    mean, good, kept = {}, {}, {}
    for path, all_stripes in comm.gather(answer).items():
        one = like[path]
        decoded = jax.vmap(lambda p, one=one: code.decode(p, one, None))
        mean[path] = unstriped(decoded(all_stripes), arrays[path])
        good[path] = mean_is_finite(code, all_stripes, mean[path])
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
