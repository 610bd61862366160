"""The sparse codes under test, each compiled once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from parsgd.compressors import Compressor, random_k, threshold, top_k

KEY = jax.random.key(3)
CODES = {
    "top_k": top_k,
    "top_k sampled": lambda density: top_k(density=density, select="sampled"),
    "random_k": random_k,
    "random_k scaled": lambda density: random_k(density=density, scaled=True),
    "threshold": lambda density: threshold(tau=0.5, max_density=density),
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
def named(name, density):
    """One code, and so one compiled program, for each name and density."""
    return CODES[name](density=density)


@functools.cache
def program(code):
    def both(x, key):
        payload = code.encode(x, key)
        return payload, code.decode(payload, x, key)

    return jax.jit(both)


def there_and_back(code, x, key=KEY):
    payload, decoded = program(code)(jnp.asarray(x), key)
    return payload, np.asarray(decoded)
