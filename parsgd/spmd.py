"""Run one worker's program on all workers of a placement.

Whether a part of the state can differ between workers is read from the program: it is
traced under vmap, which knows for every value if it depends on the lane. What workers
share is then stored once, on each device that needs it.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.sharding import NamedSharding, PartitionSpec

from parsgd.comm import DEVICES, LANES
from parsgd.placement import Placement

SHARED, PER_WORKER = True, False


def shared_outputs(fn: Callable, workers: int, args: tuple, shared: tuple) -> Any:
    """Which outputs of ``fn`` are equal on all workers whatever the data: a bool tree.

    Args:
        fn: One worker's program.
        workers: W.
        args: Arguments as stored: leaves that differ have a leading worker axis.
        shared: For each argument the tree (or one bool) of what workers share.
    """
    if workers == 1:
        return jax.tree.map(lambda _: SHARED, jax.eval_shape(fn, *_one(args, shared)))
    seen: list[Any] = []

    @custom_vmap
    def probe(tree):
        return tree

    @probe.def_vmap
    def _(size, batched, tree):
        del size
        seen.append(batched[0])
        return tree, batched[0]

    lanes = jax.vmap(
        lambda *a: probe(fn(*a)), _axes(shared), axis_name=LANES, axis_size=workers
    )
    out = jax.eval_shape(lanes, *args)
    if not seen:  # nothing depends on the lane, so the probe was not batched at all
        return jax.tree.map(lambda _: SHARED, out)
    return jax.tree.map(lambda batched: not batched, seen[-1])


def in_turn(fn: Callable) -> Callable:
    """``fn``, but lanes that vmap would run together run it one after the other.

    One worker's arrays then stay in the cache while it works. Lanes can't exchange
    anything in ``fn``: see `parsgd.traffic.isolated`.

    Args:
        fn: One worker's program, or a part of it that does not communicate.
    """

    @custom_vmap
    def turns(*args):
        return fn(*args)

    @turns.def_vmap
    def _(lanes, batched, *args):
        own = jax.tree.leaves(batched)
        leaves, tree = jax.tree.flatten(args)

        def lane(mine):
            mine = iter(mine)
            pick = [next(mine) if b else x for x, b in zip(leaves, own, strict=True)]
            return fn(*jax.tree.unflatten(tree, pick))

        out = lax.map(lane, [x for x, b in zip(leaves, own, strict=True) if b])
        shared_in = jax.tree.map(lambda b: not b, tuple(batched))
        shared = shared_outputs(fn, lanes, args, shared_in)
        out = jax.tree.map(lambda same, x: x[0] if same else x, shared, out)
        return out, jax.tree.map(lambda same: not same, shared)

    return turns


def _axes(shared: Any) -> Any:
    return jax.tree.map(lambda same: None if same else 0, shared)


def _prefixed(function: Callable, shared: Any, tree: Any) -> Any:
    """Map ``function(shared, leaf)`` where ``shared`` is a prefix of ``tree``."""
    return jax.tree.map(
        lambda same, part: jax.tree.map(functools.partial(function, same), part),
        shared,
        tree,
    )


def _one(tree: Any, shared: Any) -> Any:
    """Drop the worker axis of size 1."""
    return _prefixed(lambda same, x: x if same else _shape_first(x), shared, tree)


def _shape_first(x: Any) -> Any:
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    return x[0]


def spmd(
    fn: Callable,
    placement: Placement,
    shared_in: tuple,
    shared_out: Any,
    args: tuple | None = None,
) -> Callable:
    """``fn`` of one worker as a function of all workers, not yet jitted.

    Args:
        fn: One worker's program; calls `parsgd.comm`.
        placement: Where the workers are.
        shared_in: Per argument, a tree prefix of bools: True where all workers get the
            same leaf (stored once), False where the leaf has a leading worker axis W.
        shared_out: The same for the outputs. A True that does not hold is an error
            under vmap; take it from `shared_outputs`.
        args: Arguments to compile for, which only pmap needs to be told here.
    """
    lanes, count = placement.lanes, len(placement.devices)
    if lanes > 1:
        body = jax.vmap(
            fn, _axes(shared_in), _axes(shared_out), axis_name=LANES, axis_size=lanes
        )
    else:

        def body(*args):
            out = fn(*_one(args, shared_in))
            return _prefixed(lambda same, x: x if same else x[None], shared_out, out)

    if count == 1:
        return body
    if placement.kind == "pmap":
        return _pmapped(body, placement, shared_in, shared_out, args)

    def specs(shared):
        return jax.tree.map(
            lambda same: PartitionSpec() if same else PartitionSpec(DEVICES), shared
        )

    # check_vma=False: with it on, jax.grad of replicated parameters silently sums over
    # devices, and the algorithm would reduce a second time.
    return jax.shard_map(
        body,
        mesh=placement.mesh,
        in_specs=specs(shared_in),
        out_specs=specs(shared_out),
        check_vma=False,
    )


def _pmapped(
    body: Callable,
    placement: Placement,
    shared_in: Any,
    shared_out: Any,
    args: tuple | None = None,
) -> Callable:
    """`body` under pmap, compiled if ``args`` are given; workers split as [D, L]."""
    count, lanes = len(placement.devices), placement.lanes
    # pmap wants one mapped argument at least, and workers may share all of theirs.
    slots = put(np.zeros(count, np.int8), placement, PER_WORKER)
    mapped: Any = jax.pmap(
        lambda slot, *args: body(*args),
        axis_name=DEVICES,
        in_axes=(0, *_axes(shared_in)),
        out_axes=_axes(shared_out),
        devices=placement.devices,
    )

    def split(same, x):
        return x if same else x.reshape(count, lanes, *x.shape[1:])

    def join(same, x):
        return x if same else x.reshape(count * lanes, *x.shape[2:])

    if args is not None:
        first = put(_prefixed(split, shared_in, args), placement, shared_in)
        mapped = mapped.lower(slots, *first).compile()

    def run(*args):
        args = put(_prefixed(split, shared_in, args), placement, shared_in)
        out = mapped(slots, *args)
        return _prefixed(join, shared_out, out)

    return run


def _noted(body: Callable, name: str) -> Callable:
    """Run without compilation; errors name the stage and the shapes it got."""

    def run(*args):
        try:
            with jax.disable_jit():
                return body(*args)
        except Exception as error:
            shapes = jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", args)
            error.add_note(f"in stage {name!r} with arguments {shapes}")
            raise

    return run


def compiled(
    fn: Callable,
    placement: Placement,
    shared_in: tuple,
    shared_out: Any,
    args: tuple,
    *,
    donate: tuple[int, ...] = (),
    name: str = "program",
) -> Callable:
    """`spmd`, compiled ahead of time for arguments like ``args``.

    Args:
        fn: One worker's program.
        placement: Where the workers are.
        shared_in: See `spmd`.
        shared_out: See `spmd`.
        args: Arguments as they will be passed (shapes, types and devices).
        donate: Positions of arguments whose buffers the outputs may reuse.
        name: What errors call it under ``placement=debug``.
    """
    run = spmd(fn, placement, shared_in, shared_out, args)
    if placement.kind == "debug":
        return _noted(run, name)
    if placement.kind == "pmap" and len(placement.devices) > 1:
        return run  # it is compiled already
    return jax.jit(run, donate_argnums=donate).lower(*args).compile()


def put(tree: Any, placement: Placement, shared: Any) -> Any:
    """Move arrays to the placement's devices, each worker's part to its own."""
    if len(placement.devices) == 1:
        return jax.device_put(tree, placement.devices[0])

    def leaf(same, x):
        spec = PartitionSpec() if same else PartitionSpec(DEVICES)
        return jax.device_put(x, NamedSharding(placement.mesh, spec))

    return _prefixed(leaf, shared, tree)


def check_replicas(tree: Any, shared: Any, placement: Placement) -> None:
    """Compare the devices' copies of everything that workers share, bit for bit.

    Raises:
        RuntimeError: A copy differs; names the worker and the leaf.
    """
    for (path, x), same in zip(
        jax.tree.leaves_with_path(tree), jax.tree.leaves(shared), strict=True
    ):
        if not same or len(x.sharding.device_set) == 1:
            continue
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        shards = sorted(x.addressable_shards, key=lambda s: s.device.id)
        first = np.asarray(shards[0].data).tobytes()
        for shard in shards[1:]:
            if np.asarray(shard.data).tobytes() != first:
                worker = placement.devices.index(shard.device) * placement.lanes
                raise RuntimeError(
                    f"worker {worker} disagrees with worker 0 in "
                    f"{jax.tree_util.keystr(path)}, which all workers should share: "
                    "a collective did not reach every worker, or its result is not "
                    "the same on all devices"
                )
