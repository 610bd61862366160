"""The sparse codes under test, each compiled once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from parsgd.compressors import Compressor, random_k, threshold, top_k

KEY = jax.random.key(3)
CODES = {
    "top_k": top_k,
    "top_k sampled": lambda ratio: top_k(ratio=ratio, select="sampled"),
    "random_k": random_k,
    "random_k scaled": lambda ratio: random_k(ratio=ratio, scaled=True),
    "threshold": lambda ratio: threshold(tau=0.5, capacity_ratio=ratio),
}


def halves() -> Compressor:
    """Values as bfloat16."""
    return Compressor(
        lambda x, key: x.astype(jnp.bfloat16),
        lambda p, like, key: p.astype(like.dtype),
        "halves",
        sums=True,
    )


def normal(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@functools.cache
def named(name, ratio):
    """One code, and so one compiled program, for each name and ratio."""
    return CODES[name](ratio=ratio)


@functools.cache
def program(code):
    def both(x, key):
        payload = code.encode(x, key)
        return payload, code.decode(payload, x, key)

    return jax.jit(both)


def there_and_back(code, x, key=KEY):
    payload, decoded = program(code)(jnp.asarray(x), key)
    return payload, np.asarray(decoded)
