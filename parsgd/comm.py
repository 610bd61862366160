"""Communication between workers: all collectives of an algorithm are called here.

W workers sit on two named axes, either of which may be absent::

    rank = device * L + lane,   W = D * L

``devices`` (D of them) is hardware, bound by shard_map or pmap; ``lanes`` (L) are
workers that share one device, bound by vmap. Every function asks JAX which axes are
bound where it is called, so the same algorithm runs under any placement, and with
neither axis bound there is one worker and nothing is sent.

All functions take pytrees. Averages touch floating-point leaves only: an averaged step
count would become a float, and a random key has no average.
"""

import functools
from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from parsgd.cluster.fused import by_type

DEVICES = "devices"
LANES = "lanes"
# Most lanes whose mean is written out as a sum, which XLA on CPU joins with its terms.
# More are a product with a row of 1/L: 20 times as fast as its sum over a leading axis.
UNROLLED = 8

Tree = TypeVar("Tree")


def _size(axis: str) -> int:
    """Size of a named axis; 1 where it is not bound."""
    try:
        return lax.axis_size(axis)
    except NameError:
        return 1


def _bound(axis: str) -> bool:
    return _size(axis) > 1


def world() -> int:
    """Number of workers W, a Python integer."""
    return _size(DEVICES) * _size(LANES)


def rank() -> jax.Array:
    """This worker's number in 0..W-1, an int32 scalar.

    Example:
        >>> import jax, jax.numpy as jnp, parsgd
        >>> each = lambda x: x * parsgd.comm.world() + parsgd.comm.rank()
        >>> jax.vmap(each, axis_name=parsgd.comm.LANES)(jnp.array([10, 10, 10]))
        Array([30, 31, 32], dtype=int32)
    """
    index = jnp.int32(0)
    if _bound(DEVICES):
        index += lax.axis_index(DEVICES) * _size(LANES)
    if _bound(LANES):
        index += lax.axis_index(LANES)
    return index


def _is_float(x: jax.Array) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)


def _scaled_sum(x: jax.Array, scale: float) -> jax.Array:
    """``scale * sum over the leading axis``, accumulated in float32 or wider."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    # In bfloat16 1/L itself would be rounded, and the mean off by up to 0.3 %.
    inner = scale if x.dtype == wide else 1.0
    if len(x) <= UNROLLED:
        out = functools.reduce(jnp.add, (inner * lane for lane in x.astype(wide)))
    else:
        row = jnp.full((len(x),), inner, x.dtype)
        # Accelerators round the factors of a product unless told not to.
        exact = {"precision": lax.Precision.HIGHEST, "preferred_element_type": wide}
        out = jnp.tensordot(row, x, 1, **exact)
    return (out * (scale / inner)).astype(x.dtype)


def _lane_sum(x: jax.Array, scale: float) -> jax.Array:
    return _scaled_sum(lax.all_gather(x, LANES), scale)


def _by_rank(x: jax.Array) -> jax.Array:
    """``[D, L, ...] -> [W, ...]``."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def mean(tree: Tree) -> Tree:
    """Average of every floating-point leaf over all workers; other leaves unchanged.

    The result has the same bits on every worker. Average parameters themselves, never
    ``p + (mean - p)``, which is not bitwise equal across workers.

    In half precision a device's lanes are averaged in ``float32`` and rounded once, but
    the D devices' averages are added in half precision. So placements differ, by at
    most D units in the last place of the largest of the workers' values. In ``float16``
    each device divides its average by D before they are added, so that their sum is no
    larger than the largest of them; each quotient is then rounded to a multiple of
    6e-8, the smallest number, and the mean is off by up to 3e-8 D.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from parsgd import comm
        >>> average = jax.vmap(comm.mean, axis_name=comm.LANES)
        >>> average({"w": jnp.array([1.0, 3.0]), "count": jnp.array([7, 7])})
        {'count': Array([7, 7], dtype=int32), 'w': Array([2., 2.], dtype=float32)}
    """

    def lanes(x):
        return _lane_sum(x, 1 / _size(LANES)) if _is_float(x) else x

    return mean_over_devices(jax.tree.map(lanes, tree) if _bound(LANES) else tree)


def mean_of_lanes(tree: Tree) -> Tree:
    """Average over an explicit leading axis, ``[L, ...] -> [...]``, of floats."""
    average = lambda x: _scaled_sum(x, 1 / len(x)) if _is_float(x) else x
    return jax.tree.map(average, tree)


def mean_over_devices(tree: Tree) -> Tree:
    """Average over devices of what a device's lanes share."""
    if not _bound(DEVICES):
        return tree
    return by_type(_device_mean, tree, _is_float)


def _device_mean(x: jax.Array) -> jax.Array:
    if jnp.result_type(x) == jnp.float16:
        # A sum of large numbers has no float16, though their mean has.
        return lax.psum(x / _size(DEVICES), DEVICES)
    return lax.pmean(x, DEVICES)


def total(tree: Tree) -> Tree:
    """Sum of every leaf over all workers, in the leaf's own type.

    Example:
        >>> import jax, jax.numpy as jnp, parsgd
        >>> jax.vmap(parsgd.comm.total, axis_name=parsgd.comm.LANES)(jnp.arange(3))
        Array([3, 3, 3], dtype=int32)
    """

    def lanes(x):
        if _is_float(x):
            return _lane_sum(x, 1.0)
        return jnp.sum(lax.all_gather(x, LANES), axis=0, dtype=x.dtype)

    tree = jax.tree.map(lanes, tree) if _bound(LANES) else tree
    if not _bound(DEVICES):
        return tree
    return by_type(lambda x: lax.psum(x, DEVICES), tree)


def gather(tree: Tree) -> Tree:
    """Every worker's leaf, stacked in rank order: ``[...] -> [W, ...]``.

    Example:
        >>> import jax, jax.numpy as jnp, parsgd
        >>> jax.vmap(parsgd.comm.gather, axis_name=parsgd.comm.LANES)(jnp.arange(3))[0]
        Array([0, 1, 2], dtype=int32)
    """

    def lanes(x):
        return lax.all_gather(x, LANES) if _bound(LANES) else x[None]

    tree = jax.tree.map(lanes, tree)
    if not _bound(DEVICES):
        return tree
    return by_type(lambda x: lax.all_gather(x, DEVICES), tree, after=_by_rank)


def maximum(tree: Tree) -> Tree:
    """Largest value of every entry over all workers; NaN where any worker has NaN.

    Example:
        >>> import jax, jax.numpy as jnp, parsgd
        >>> jax.vmap(parsgd.comm.maximum, axis_name=parsgd.comm.LANES)(jnp.arange(3))
        Array([2, 2, 2], dtype=int32)
    """

    def largest(axis, x):
        each = lax.all_gather(x, axis)
        most = jnp.max(each, axis=0)  # the platform's, and on a CPU XLA's, may drop NaN
        spoilt = jnp.isnan(each).any(0)
        return jnp.where(spoilt, jnp.nan, most) if _is_float(x) else most

    for axis, each in ((LANES, jax.tree.map), (DEVICES, by_type)):
        if _bound(axis):
            tree = each(functools.partial(largest, axis), tree)
    return tree


def agreed(tree: Tree) -> Tree:
    """The same leaves, where the caller knows that they are equal on all workers.

    Values that came by `permute` look as if each lane had its own; then all would be
    stored W times. Nothing is sent; a run checks it with ``check_replicas=True``.
    """

    @jax.jit
    def equal_on_all(x):  # `parsgd.varying` knows the name
        return lax.all_gather(x, LANES)[0] if _bound(LANES) else x

    return jax.tree.map(equal_on_all, tree)


def all_to_all(tree: Tree) -> Tree:
    """Part r of worker s goes to worker r, as its part s: ``[W, ...] -> [W, ...]``.

    Raises:
        ValueError: A leaf whose first axis is not W.

    Example:
        >>> import jax, jax.numpy as jnp, parsgd
        >>> parts = jnp.array([[1, 2], [3, 4]])  # of two workers
        >>> jax.vmap(parsgd.comm.all_to_all, axis_name=parsgd.comm.LANES)(parts)
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    lanes, devices = _size(LANES), _size(DEVICES)

    def leaf(x):
        if len(x) != lanes * devices:
            raise ValueError(f"all_to_all: {len(x)} parts for {world()} workers")
        x = x.reshape(devices, lanes, *x.shape[1:])
        return lax.all_to_all(x, LANES, 1, 1) if _bound(LANES) else x

    tree = jax.tree.map(leaf, tree)
    if _bound(DEVICES):
        tree = by_type(lambda x: lax.all_to_all(x, DEVICES, 0, 0), tree, lead=1)
    return jax.tree.map(_by_rank, tree)


def permute(tree: Tree, pairs: Sequence[tuple[int, int]]) -> Tree:
    """Send leaves along ``(source, destination)`` pairs of ranks.

    Every rank appears at most once as a source and once as a destination; a rank that
    receives nothing gets zeros, as in ``lax.ppermute``.

    Raises:
        ValueError: A rank outside 0..W-1, or one that sends or receives twice.

    Example:
        >>> import jax, jax.numpy as jnp, parsgd
        >>> each = lambda x: parsgd.comm.permute(x, [(0, 2), (2, 1)])
        >>> jax.vmap(each, axis_name=parsgd.comm.LANES)(jnp.array([5, 6, 7]))
        Array([0, 7, 5], dtype=int32)
    """
    size, lanes, devices = world(), _size(LANES), _size(DEVICES)
    sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
    if len({*sources}) < len(pairs) or len({*targets}) < len(pairs):
        raise ValueError(f"a rank sends or receives twice in {list(pairs)}")
    if any(not 0 <= r < size for r in sources + targets):
        raise ValueError(f"ranks must be 0..{size - 1}, got {list(pairs)}")
    if not _bound(LANES):
        if not _bound(DEVICES):
            return tree if pairs else jax.tree.map(jnp.zeros_like, tree)
        return jax.tree.map(lambda x: lax.ppermute(x, DEVICES, list(pairs)), tree)

    source_of = dict(zip(targets, sources, strict=True))
    table = jnp.array([source_of.get(r, -1) for r in range(size)], jnp.int32)
    source = table[me := rank()]
    # Whole blocks of lanes travel between devices, one transfer for each distance that
    # occurs; each lane then picks its source from the block of the right device.
    hops = sorted({(t // lanes - s // lanes) % devices for s, t in pairs})

    def leaf(x):
        block = lax.all_gather(x, LANES)
        out = jnp.zeros_like(x)
        for hop in hops:
            ring = [(d, (d + hop) % devices) for d in range(devices)]
            arrived = lax.ppermute(block, DEVICES, ring) if hop else block
            home = (me // lanes - hop) % devices
            mine = (source >= 0) & (source // lanes == home)
            out = jnp.where(mine, arrived[source % lanes], out)
        return out

    return jax.tree.map(leaf, tree)


def shift(tree: Tree, by: int = 1) -> Tree:
    """What the worker ``by`` ranks before this one has, around the ring.

    Example:
        >>> import jax, jax.numpy as jnp, parsgd
        >>> jax.vmap(parsgd.comm.shift, axis_name=parsgd.comm.LANES)(jnp.arange(3))
        Array([2, 0, 1], dtype=int32)
    """
    size = world()
    return permute(tree, [(r, (r + by) % size) for r in range(size)])
