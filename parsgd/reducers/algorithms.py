"""All-reduce written out as messages between pairs of workers.

What a library does inside one collective, with W workers and n numbers each:

==============  ===================  ============================================
algorithm       sent per worker      steps
==============  ===================  ============================================
`ring`          ``2 (W-1)/W n``      ``2 (W-1)``; every link carries n/W at a time
`tree`          ``2 (W-1)/W n``      ``2 log2 W``; on average: inner nodes send more
`hierarchical`  as `ring`            ``2 (g-1) + 2 (W/g-1)``, of which few are long
==============  ===================  ============================================

The tree is the one of multi-GPU Caffe: with four workers 1 -> 0 and 3 -> 2, then
2 -> 0, and the same way back. The hierarchical form averages in groups of g neighbours
(one machine's devices) by scattering, so only n/g numbers of each cross the slow links.

All give the mean to rounding, and the same bits on every worker: each number is summed
in one place and copied from there.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from parsgd import comm
from parsgd.errors import UserError

Tree = TypeVar("Tree")
Rings: TypeAlias = Sequence[Sequence[int]]


def ring(tree: Tree) -> Tree:
    """Average by scattering sums around a ring, then gathering them."""
    return _each(tree, lambda x: _over_rings(x, [[*range(comm.world())]]))


def hierarchical(tree: Tree, group: int) -> Tree:
    """Average within groups of neighbouring ranks and across them.

    Args:
        tree: Arrays; floats are averaged, others left alone.
        group: Workers of a group, a divisor of W.

    Raises:
        UserError: ``group`` does not divide W.
    """
    workers = comm.world()
    if group < 1 or workers % group:
        fit = [g for g in range(1, workers + 1) if workers % g == 0]
        raise UserError(
            f"group={group} does not divide {workers} workers: use one of {fit}"
        )
    inside = [[*range(s, s + group)] for s in range(0, workers, group)]
    across = [[*range(r, workers, group)] for r in range(group)]

    def average(x):
        chunks, mine = _reduce_scatter(_chunks(x, group), inside)
        total = _over_rings(chunks[mine], across)
        chunks = chunks.at[mine].set(total)
        return _flat(_all_gather(chunks, mine, inside), x)

    return _each(tree, average)


def tree(tree: Tree) -> Tree:
    """Average up a binary tree to rank 0 and down again."""
    workers = comm.world()
    strides = [1 << i for i in range((workers - 1).bit_length())]

    def pairs(stride):
        upper = range(stride, workers, 2 * stride)
        return [(r, r - stride) for r in upper]

    def average(x):
        for stride in strides:
            x = x + comm.permute(x, pairs(stride))  # zeros where nothing arrives
        for stride in reversed(strides):
            down = [(parent, child) for child, parent in pairs(stride)]
            arrives = jnp.isin(comm.rank(), jnp.array([child for _, child in down]))
            x = jnp.where(arrives, comm.permute(x, down), x)
        return x

    return _each(tree, average)


def _each(tree: Tree, total: Callable[[jax.Array], jax.Array]) -> Tree:
    """Means of the floating-point leaves, given how one is summed."""
    workers = comm.world()
    if workers == 1:
        return tree

    def leaf(x):
        if not jnp.issubdtype(x.dtype, jnp.floating) or not x.size:
            return x
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return comm.agreed((total(wide) / workers).astype(x.dtype))

    return jax.tree.map(leaf, tree)


def _chunks(x: jax.Array, count: int) -> jax.Array:
    """The numbers in equal chunks, zeros added: ``[count, ceil(n / count)]``."""
    flat = x.reshape(-1)
    return jnp.pad(flat, (0, -flat.size % count)).reshape(count, -1)


def _flat(chunks: jax.Array, like: jax.Array) -> jax.Array:
    return chunks.reshape(-1)[: like.size].reshape(like.shape)


def _over_rings(x: jax.Array, rings: Rings) -> jax.Array:
    """Sum over the members of each ring."""
    if len(rings[0]) == 1:
        return x
    chunks, mine = _reduce_scatter(_chunks(x, len(rings[0])), rings)
    return _flat(_all_gather(chunks, mine, rings), x)


def _position(rings: Rings) -> jax.Array:
    """This worker's place in its ring."""
    place = [0] * comm.world()
    for ring in rings:
        for i, rank in enumerate(ring):
            place[rank] = i
    return jnp.array(place, jnp.int32)[comm.rank()]


def _neighbours(rings: Rings) -> list[tuple[int, int]]:
    return [
        (rank, ring[(i + 1) % len(ring)])
        for ring in rings
        for i, rank in enumerate(ring)
    ]


def _reduce_scatter(chunks: jax.Array, rings: Rings) -> tuple[jax.Array, jax.Array]:
    """After it, chunk ``mine`` of each worker is the sum over its ring."""
    size, me, links = len(rings[0]), _position(rings), _neighbours(rings)

    def step(chunks, s):
        arrived = comm.permute(chunks[(me - s) % size], links)
        at = (me - s - 1) % size
        return chunks.at[at].add(arrived), None

    chunks, _ = lax.scan(step, chunks, jnp.arange(size - 1))
    return chunks, (me + 1) % size


def _all_gather(chunks: jax.Array, mine: jax.Array, rings: Rings) -> jax.Array:
    size, links = len(rings[0]), _neighbours(rings)

    def step(chunks, s):
        arrived = comm.permute(chunks[(mine - s) % size], links)
        return chunks.at[(mine - s - 1) % size].set(arrived), None

    return lax.scan(step, chunks, jnp.arange(size - 1))[0]
