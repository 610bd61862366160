"""Cheap random numbers for stochastic compressors: a hash of the counter.

JAX's default generator takes longer than all the rest of a compressor on a CPU.
Rounding needs numbers that are independent of the values that they round and of each
other, not ones that resist an adversary: an integer hash of the element's number does,
with two words of the JAX key mixed in at two places::

    h = i ^ a;  h ^= h >> 16;  h *= 0x7feb352d;  h ^= b
    h ^= h >> 15;  h *= 0x846ca68b;  h ^= h >> 16

The multipliers and shifts are those of Chris Wellons' ``lowbias32``, found by a search
for the smallest bias of the avalanche.
"""

import math

import jax
import jax.numpy as jnp


def _mix(h: jax.Array, inner: jax.Array | int) -> jax.Array:
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = h ^ inner
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    return h ^ (h >> 16)


def uniform_bits(key: jax.Array, shape: tuple[int, ...], start: int = 0) -> jax.Array:
    """Random 32-bit words, ``uint32`` of ``shape``; a pure function of the key.

    Args:
        key: A JAX random key. The words of its data are mixed first, so that keys of
            consecutive seeds give unrelated numbers.
        shape: Of the result; up to 2**32 entries, after which the numbers repeat.
        start: Number of the first entry, for a part of a larger array.

    Example:
        >>> import jax
        >>> from parsgd.compressors.random import uniform_bits
        >>> uniform_bits(jax.random.key(0), (2, 2)).dtype
        dtype('uint32')
    """
    words = jax.random.key_data(key).reshape(-1)
    first = _mix(words[0] ^ jnp.uint32(0x9E3779B9), 0)
    second = _mix(words[-1] ^ first, jnp.uint32(0x85EBCA6B))
    first = _mix(first ^ second, jnp.uint32(0xC2B2AE35))
    number = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return _mix((number + jnp.uint32(start)) ^ first, second)
