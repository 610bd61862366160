"""The benchmarked optimizers, by hand: SGD, Nesterov's momentum and AdamW."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Optimizer(NamedTuple):
    """An optimizer of one tree."""

    init: Callable  # (params) -> state
    update: Callable  # (params, grads, state) -> (params, state)


def sgd(lr: float) -> Optimizer:
    """``p <- p - lr g``."""

    def update(params, grads, state):
        return jax.tree.map(lambda p, g: p - lr * g, params, grads), state

    return Optimizer(lambda params: {}, update)


def nesterov(lr: float, momentum: float) -> Optimizer:
    """``m <- momentum m + g``; ``p <- p - lr (g + momentum m)``."""

    def update(params, grads, m):
        m = jax.tree.map(lambda m, g: momentum * m + g, m, grads)
        step = lambda p, g, m: p - lr * (g + momentum * m)
        return jax.tree.map(step, params, grads, m), m

    return Optimizer(lambda params: jax.tree.map(jnp.zeros_like, params), update)


def adamw(lr: float, b1=0.9, b2=0.999, eps=1e-8, decay=1e-4) -> Optimizer:
    """Adam with decoupled weight decay."""

    def init(params):
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)
        return {"m": zeros(), "v": zeros(), "count": jnp.float32(0)}

    def update(params, grads, state):
        count = state["count"] + 1
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state["m"], grads)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state["v"], grads)
        scale, root = 1 / (1 - b1**count), 1 / (1 - b2**count)

        def step(p, m, v):
            return p - lr * (m * scale / (jnp.sqrt(v * root) + eps) + decay * p)

        return jax.tree.map(step, params, m, v), {"m": m, "v": v, "count": count}

    return Optimizer(init, update)
