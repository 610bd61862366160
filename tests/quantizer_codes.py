"""The quantising codes under test, and their payloads' bytes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from parsgd.compressors import (
    bf16,
    dynamic_tree_8bit,
    fp8,
    fp16,
    linear_8bit,
    natural,
    one_bit,
    qsgd,
    scaled_sign,
    sign,
    terngrad,
)

KEY = jax.random.key(3)
SHAPES = [(), (1,), (0, 4), (4, 0), (7,), (2, 3), (3, 3, 8, 8)]
DTYPES = [np.float32, jnp.bfloat16]
CODES = {
    "one_bit": one_bit(),
    "one_bit leaf": one_bit(levels="leaf"),
    "scaled_sign": scaled_sign(),
    "scaled_sign l2": scaled_sign(norm="l2"),
    "sign": sign(),
    "qsgd": qsgd(),
    "qsgd max": qsgd(levels=7, bucket_size=64, norm="max"),
    "qsgd odd bucket": qsgd(levels=3, bucket_size=5),
    "terngrad": terngrad(),
    "terngrad unclipped": terngrad(clip=None),
    "natural": natural(),
    "natural nearest": natural(rounding="nearest"),
    "linear_8bit": linear_8bit(),
    "linear_8bit block": linear_8bit(block_size=64),
    "linear_8bit random": linear_8bit(rounding="random"),
    "dynamic_tree_8bit": dynamic_tree_8bit(),
    "dynamic_tree_8bit block": dynamic_tree_8bit(block_size=32),
    "fp16": fp16(),
    "bf16": bf16(),
    "fp8": fp8(),
    "fp8 e5m2": fp8(format="e5m2"),
    "fp8 unscaled": fp8(scaled=False),
}
BLOCKED = {
    "qsgd max": 64,
    "qsgd odd bucket": 5,
    "linear_8bit block": 64,
    "dynamic_tree_8bit block": 32,
}


def count(n, size):
    return max(1, -(-n // size))


FORMULAS = {  # bytes, of n entries with c columns
    "one_bit": lambda n, c: -(-n // 8) + 8 * c,
    "one_bit leaf": lambda n, c: -(-n // 8) + 8,
    "scaled_sign": lambda n, c: -(-n // 8) + 4,
    "scaled_sign l2": lambda n, c: -(-n // 8) + 4,
    "sign": lambda n, c: -(-n // 8) + 4,
    "qsgd": lambda n, c: 5 * -(-n // 8) + 4 * count(n, 512),
    "qsgd max": lambda n, c: 4 * -(-n // 8) + 4 * count(n, 64),
    "qsgd odd bucket": lambda n, c: 3 * -(-n // 8) + 4 * count(n, 5),
    "terngrad": lambda n, c: 2 * -(-n // 8) + 4,
    "terngrad unclipped": lambda n, c: 2 * -(-n // 8) + 4,
    "natural": lambda n, c: 9 * -(-n // 8),
    "natural nearest": lambda n, c: 9 * -(-n // 8),
    "linear_8bit": lambda n, c: n + 4,
    "linear_8bit block": lambda n, c: n + 4 * count(n, 64),
    "linear_8bit random": lambda n, c: n + 4,
    "dynamic_tree_8bit": lambda n, c: n + 4 * count(n, 2048),
    "dynamic_tree_8bit block": lambda n, c: n + 4 * count(n, 32),
    "fp16": lambda n, c: 2 * n,
    "bf16": lambda n, c: 2 * n,
    "fp8": lambda n, c: n + 4,
    "fp8 e5m2": lambda n, c: n + 4,
    "fp8 unscaled": lambda n, c: n,
}


def normal(shape, dtype=np.float32, seed=0):
    v = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(v, dtype)


@functools.partial(jax.jit, static_argnames="code")
def through(code, x, key=KEY):
    return code.decode(code.encode(x, key), x, key)


def close(got, want, *, edges=0):
    """Equal to rounding; all but ``edges`` entries, whose draws float32 decides."""
    off = ~np.isclose(np.asarray(got, np.float64), want, rtol=2e-5, atol=1e-12)
    assert off.sum() <= edges, (np.asarray(got)[off], np.asarray(want)[off])
