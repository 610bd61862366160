"""Run one worker's program on all workers of a placement.

What workers share (`parsgd.lanes`) is stored once, on each device that needs it.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from parsgd import cluster
from parsgd.cluster.alike import check_alike
from parsgd.cluster.fused import small_together
from parsgd.comm import DEVICES, LANES
from parsgd.lanes import axes, one_worker, prefixed
from parsgd.placement.devices import Placement

# In place of True: the lanes of a device share it, and each device has its own.
PER_DEVICE = "per device"

# A call of a function of the host: after its arguments comes the function's number.
_CALL = re.compile(r"(custom_call @\w*callback\w*\(.*?\)).*?(?= : )")


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
            `PER_DEVICE` where it has one part for each device, see `scattered`.
        shared_out: The same for the outputs, as `parsgd.lanes.shared_outputs` finds it.
            A True that does not hold is an error under vmap.
        args: Arguments to compile for; only pmap needs them here.
    """
    lanes, count = placement.lanes, len(placement.devices)
    if lanes > 1:
        body = jax.vmap(
            fn, axes(shared_in), axes(shared_out), axis_name=LANES, axis_size=lanes
        )
    else:

        def body(*args):
            out = fn(*one_worker(args, shared_in))
            return prefixed(lambda same, x: x if same else x[None], shared_out, out)

    if count == 1:
        return body
    if placement.processes == 1 and placement.devices[0].platform == "cpu":
        body = small_together(body)
    if placement.kind == "pmap":
        return _pmapped(body, placement, shared_in, shared_out, args)

    def specs(shared):
        return jax.tree.map(_spec, shared)

    # check_vma=False: with it on, jax.grad of replicated parameters silently sums over
    # devices, and the algorithm would reduce a second time.
    return jax.shard_map(
        body,
        mesh=placement.mesh,
        in_specs=specs(shared_in),
        out_specs=specs(shared_out),
        check_vma=False,
    )


def _spec(shared: bool | str) -> PartitionSpec:
    apart = not shared or shared == PER_DEVICE
    return PartitionSpec(DEVICES) if apart else PartitionSpec()


def _pmapped(
    body: Callable,
    placement: Placement,
    shared_in: Any,
    shared_out: Any,
    args: tuple | None = None,
) -> Callable:
    """`body` under pmap, compiled if ``args`` are given; workers split as [D, L]."""
    count, lanes = len(placement.devices), placement.lanes
    # pmap needs at least one mapped argument, and workers may share all of theirs.
    slots = put(np.zeros(count, np.int8), placement, False)
    mapped: Any = jax.pmap(
        lambda slot, *args: body(*args),
        axis_name=DEVICES,
        in_axes=(0, *axes(shared_in)),
        out_axes=axes(shared_out),
        devices=placement.devices,
    )

    def split(same, x):
        return x if same else x.reshape(count, lanes, *x.shape[1:])

    def join(same, x):
        return x if same else x.reshape(count * lanes, *x.shape[2:])

    if args is not None:
        first = put(prefixed(split, shared_in, args), placement, shared_in)
        mapped = mapped.lower(slots, *first).compile()

    def run(*args):
        args = put(prefixed(split, shared_in, args), placement, shared_in)
        out = mapped(slots, *args)
        return prefixed(join, shared_out, out)

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
        donate: Positions of arguments whose buffers the outputs may reuse (not under
            pmap, which so needs room for two states).
        name: What errors call it under ``placement=debug``.
    """
    run = spmd(fn, placement, shared_in, shared_out, args)
    if placement.kind == "debug":
        return _noted(run, name)
    if placement.kind == "pmap" and len(placement.devices) > 1:
        return run  # it is compiled already
    out = None
    if len(placement.devices) > 1:
        # Said here as well: of empty arrays the compiler says that all share them.
        out = jax.tree.map(
            lambda same: NamedSharding(placement.mesh, _spec(same)), shared_out
        )
    lowered = jax.jit(run, donate_argnums=donate, out_shardings=out).lower(*args)
    if placement.processes > 1:
        _check_same_program(lowered.as_text(), name)
    program = lowered.compile()
    if placement.processes > 1:
        # A process that found it in its cache would wait in the program's first
        # collective, for which gloo allows 30 s.
        cluster.exchange("compiled program", name)
    return program


def _check_same_program(text: str, name: str) -> None:
    """Refuse processes whose scripts differ: in rates, models or strategies.

    Those are known from the program alone.
    """
    digest = hashlib.sha256(without_numbers(text).encode()).hexdigest()[:12]
    check_alike({f"compiled program ({name}), by its checksum": digest})


def without_numbers(text: str) -> str:
    """A lowered program without the numbers that this process gave host functions."""
    return _CALL.sub(r"\1", text)


def put(tree: Any, placement: Placement, shared: Any) -> Any:
    """Move arrays to the placement's devices, each worker's part to its own."""
    if len(placement.devices) == 1:
        return jax.device_put(tree, placement.devices[0])
    place = jax.device_put if placement.processes == 1 else _put_own_part

    def leaf(same, x):
        return place(x, NamedSharding(placement.mesh, _spec(same)))

    return prefixed(leaf, shared, tree)


def scattered(x: np.ndarray, parts: Sequence[np.ndarray], placement: Placement) -> Any:
    """Rows of ``x``, on each device those that its lanes need: one `PER_DEVICE` leaf.

    Args:
        x: ``[N, ...]``; a process reads the rows of its own devices only.
        parts: Each device's rows, equally many.
        placement: Where the workers are; with a mesh.
    """
    size = len(parts[0])

    def part(where: Any) -> np.ndarray:
        return x[parts[(where[0].start or 0) // size]]

    sharding = NamedSharding(placement.mesh, PartitionSpec(DEVICES))
    shape = (len(parts) * size, *x.shape[1:])
    return jax.make_array_from_callback(shape, sharding, part)


def _put_own_part(x: Any, sharding: NamedSharding) -> jax.Array:
    """An array of several processes: each moves its own workers' part to its devices.

    Args:
        x: The whole array, known to every process; or one of several processes already.
        sharding: Where it is to be.
    """
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return x if x.sharding == sharding else jax.device_put(x, sharding)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        kind = jax.random.key_impl(x)
        data = _put_own_part(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(data, impl=kind)
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, whole.__getitem__)


def whole(tree: Any, placement: Placement) -> Any:
    """Arrays with all workers' parts on the host, on every process."""
    if placement.processes == 1:
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def check_replicas(tree: Any, shared: Any, placement: Placement) -> None:
    """Compare the devices' copies of everything that workers share, bit for bit.

    Raises:
        RuntimeError: A copy differs; names the worker and the leaf.
    """
    digests = []
    for (path, x), same in zip(
        jax.tree.leaves_with_path(tree), jax.tree.leaves(shared), strict=True
    ):
        if not same or len(x.sharding.device_set) == 1:
            continue
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        shards = sorted(x.addressable_shards, key=lambda s: s.device.id)
        name = jax.tree_util.keystr(path)
        first = np.asarray(shards[0].data).tobytes()
        for shard in shards[1:]:
            if np.asarray(shard.data).tobytes() != first:
                raise _apart(placement, shard.device, shards[0].device, name)
        digests.append((name, hashlib.sha256(first).hexdigest()))
    if placement.processes > 1:
        _check_processes(digests, placement)


def _check_processes(digests: list[tuple[str, str]], placement: Placement) -> None:
    """As `check_replicas`, between processes, by a digest of each leaf."""
    words = " ".join(digest for _, digest in digests)
    others = [text.split() for text in cluster.exchange("replicas", words)]
    devices: dict[int, Any] = {}
    for device in placement.devices:
        devices.setdefault(device.process_index, device)
    for process, theirs in enumerate(others):
        for (name, _), mine, other in zip(digests, others[0], theirs, strict=True):
            if mine != other:
                raise _apart(placement, devices[process], devices[0], name)


def _apart(placement: Placement, device: Any, other: Any, name: str) -> RuntimeError:
    worker, with_whom = (
        placement.devices.index(d) * placement.lanes for d in (device, other)
    )
    return RuntimeError(
        f"worker {worker} disagrees with worker {with_whom} in {name}, which all "
        "workers should share: a collective did not reach every worker, or its result "
        "is not the same on all devices"
    )
