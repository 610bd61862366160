"""Adasum: gradients that agree are averaged, gradients that do not are added.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.compressors.groups import unit_of
from parsgd.compressors.packing import alone


def adasum(*, per_leaf: bool = True) -> optax.GradientTransformation:
    """Reduce gradients by adaptive summation, equal on all workers.

    Two workers' gradients a and b become::

        (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

    which is a for a = b, a + b for orthogonal ones, and what two steps taken one after
    the other would give to second order. More are reduced in pairs, recursively.

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

    Returns:
        An optax transformation without state.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from parsgd import comm
        >>> from parsgd.reducers import adasum
        >>> g = jnp.array([[3.0, 0.0], [0.0, 4.0]])
        >>> each = lambda g: adasum().update(g, adasum().init(g))[0]
        >>> jax.vmap(each, axis_name=comm.LANES)(g)[0]
        Array([3., 4.], dtype=float32)

    References:
        Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys
        2021, arXiv:2006.02924.

    Differences from the paper:
        Before an optimizer the gradient is reduced, not the optimizer's step.
        The whole gradient is exchanged at each level, where the paper halves it: twice
        the bytes at W = 4 and more, and no second pass to collect the halves.
    """

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        workers, rank = comm.world(), comm.rank()
        core = 1 << (workers.bit_length() - 1)
        rest = range(workers - core)
        x, structure = jax.tree.flatten(updates)
        if rest:
            # Those that get nothing pair with zeros, which changes nothing.
            other = comm.permute(x, [(core + i, i) for i in rest])
            x = _pair(x, other, True, per_leaf=per_leaf)
        distance = 1
        while distance < core:
            other = comm.permute(x, [(r, r ^ distance) for r in range(core)])
            x = _pair(x, other, rank & distance == 0, per_leaf=per_leaf)
            distance *= 2
        if rest:
            back = comm.permute(x, [(i, core + i) for i in rest])
            x = optax.tree.where(rank >= core, back, x)
        return comm.agreed(jax.tree.unflatten(structure, x)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _merged(own: list, other: list, first: Any, *, per_leaf: bool) -> list:
    """The sum of two workers' gradients: the same bits on both.

    Both add in one order, this one's first where ``first`` is set. It is a call of its
    own: merged with what makes ``own``, XLA would compute that again with other
    roundings than in the copy that was sent.
    """
    a = optax.tree.where(first, own, other)
    b = optax.tree.where(first, other, own)
    if not per_leaf:
        return _combine(a, b)
    return [_combine([x], [y])[0] for x, y in zip(a, b, strict=True)]


_pair = alone(_merged, "per_leaf")


def _combine(a: list, b: list) -> list:
    """The pair's sum, for arrays that stand for one vector each.

    The paper's formula is::

        (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

    Squares of entries above 1e19 or below 1e-19 leave float32, so vectors are scaled
    by their largest entries: with ``a = A u`` and ``b = B v`` it is::

        a - B (u.v / (2 u.u)) u + b - A (u.v / (2 v.v)) v
    """
    A, u = _scaled(a)
    B, v = _scaled(b)
    uv = _dot(u, v)
    along_u = B * _half(uv, _dot(u, u))
    along_v = A * _half(uv, _dot(v, v))
    return [
        (
            (a_i.astype(jnp.float32) - along_u * u_i)
            + (b_i.astype(jnp.float32) - along_v * v_i)
        ).astype(a_i.dtype)
        for a_i, b_i, u_i, v_i in zip(a, b, u, v, strict=True)
    ]


def _scaled(arrays: list) -> tuple[jax.Array, list]:
    """Largest absolute value, and the arrays over it, whose squares do not overflow."""
    wide = [x.astype(jnp.float32) for x in arrays]
    largest = jnp.float32(0)
    for x in wide:
        largest = jnp.maximum(largest, jnp.max(jnp.abs(x), initial=0.0))
    down, unit = unit_of(largest)
    return largest, [x * down / unit for x in wide]


def _dot(a: list, b: list) -> jax.Array:
    return sum((jnp.sum(x * y) for x, y in zip(a, b, strict=True)), jnp.float32(0))


def _half(dot: jax.Array, square: jax.Array) -> jax.Array:
    """``dot / (2 square)``; 0 for a vector of zeros, which is orthogonal to all."""
    return jnp.where(square == 0, 0.0, dot / jnp.where(square == 0, 1.0, 2 * square))
