"""Adasum: gradients that agree are averaged, gradients that do not are added.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021. Two
workers' gradients a and b become::

    (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

which is a for a = b, a + b for orthogonal ones, and what two steps taken one after the
other would give to second order. More workers are reduced in pairs, recursively.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from parsgd import comm


def adasum(*, per_leaf: bool = True) -> optax.GradientTransformation:
    """Reduce gradients by adaptive summation, equal on all workers.

    For W a power of two, worker r exchanges with ``r xor 1``, then ``r xor 2``, ``r xor
    4`` and so on: ``log2(W)`` messages of the whole gradient. For other W, with p the
    largest power of two below, workers p and above first give theirs to workers 0, 1,
    ... and get the result at the end: a tree in which the first pairs are uneven.

    The result grows with what the workers disagree in, up to W times the average: the
    learning rate is that of one worker. The paper reduces the optimizer's step rather
    than its gradient: ``optax.chain(optax.sgd(lr), adasum())``.

    Args:
        per_leaf: Inner products of each leaf by itself (the paper's layers); False for
            those of the gradient as a whole.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from parsgd import comm
        >>> from parsgd.reducers import adasum
        >>> g = jnp.array([[3.0, 0.0], [0.0, 4.0]])
        >>> each = lambda g: adasum().update(g, adasum().init(g))[0]
        >>> jax.vmap(each, axis_name=comm.LANES)(g)[0]
        Array([3., 4.], dtype=float32)

    References:
        Maleki et al., MLSys 2021.

    Differences from the paper:
        The whole gradient is exchanged at each level, where the paper halves it: twice
        the bytes at W = 4 and more, and no second pass to collect the halves.
    """

    def pair(a: list, b: list) -> list:
        products = [_products(x, y) for x, y in zip(a, b, strict=True)]
        if not per_leaf:
            products = [sum(products, jnp.zeros(3))] * len(a)
        return [_combine(*each) for each in zip(a, b, products, strict=True)]

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        workers, rank = comm.world(), comm.rank()
        core = 1 << (workers.bit_length() - 1)
        rest = range(workers - core)
        x, structure = jax.tree.flatten(updates)
        if rest:
            # Those that get nothing pair with zeros, which changes nothing.
            x = pair(x, comm.permute(x, [(core + i, i) for i in rest]))
        distance = 1
        while distance < core:
            other = comm.permute(x, [(r, r ^ distance) for r in range(core)])
            # In the same order on both sides, so that both get the same bits.
            first = rank & distance == 0
            x = pair(_select(first, x, other), _select(first, other, x))
            distance *= 2
        if rest:
            back = comm.permute(x, [(i, core + i) for i in rest])
            x = _select(rank >= core, back, x)
        return comm.agreed(jax.tree.unflatten(structure, x)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _select(condition: jax.Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _products(a: jax.Array, b: jax.Array) -> jax.Array:
    """``[a.a, a.b, b.b]`` in float32."""
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    return jnp.stack([jnp.sum(a * a), jnp.sum(a * b), jnp.sum(b * b)])


def _combine(a: jax.Array, b: jax.Array, products: jax.Array) -> jax.Array:
    aa, ab, bb = products

    def share(norm):
        # Zero and anything are orthogonal: the other one counts in full.
        return jnp.where(norm > 0, 1 - ab / jnp.where(norm > 0, 2 * norm, 1.0), 1.0)

    out = share(aa) * a.astype(jnp.float32) + share(bb) * b.astype(jnp.float32)
    return out.astype(a.dtype)
