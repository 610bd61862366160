"""Hand-written training loops of synchronous SGD, local SGD and DiLoCo, in plain JAX.

Every loop is a pair (state, run): ``run(state, data, index) -> state`` is compiled once
and takes ``index`` of examples, one leading entry per step or round. ``devices`` > 1
puts ``workers / devices`` lanes on each CPU device by shard_map.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

EVERYWHERE = PartitionSpec()
WORKERS = PartitionSpec("devices")


class State(NamedTuple):
    """What a loop carries: one shared model, optimizer states, the step's number."""

    params: dict
    inner: dict  # of the shared model, or [W, ...]
    outer: dict
    step: Array
    keys: Array  # [W] for dropout


class Loop(NamedTuple):
    """A compiled loop, where its inputs go, and the examples of one entry of index."""

    state: State
    run: Callable  # (state, pixels [N, 784], labels [N], index [T, ...]) -> state
    shape: tuple[int, ...]  # of one entry of index
    replicated: NamedSharding
    index: NamedSharding


def sync(
    params,
    loss,
    optimizer,
    *,
    workers,
    batch,
    devices=1,
    gradient,
    micro=None,
    scanned=True,
):
    """Synchronous SGD on one shared model: ``g = mean_w grad loss_w``; one update.

    Args:
      params: the model's parameters.
      loss: (params, pixels, labels, key) -> mean loss of a batch.
      optimizer: of the shared model.
      workers: W.
      batch: examples of one worker.
      devices: CPU devices, each with W / devices of the workers.
      gradient: how a device takes its workers' gradients: "vmapped" (one each, then
        their mean), "in_turn" (the same, one after the other), "of_mean" (one gradient
        of the mean of the vmapped losses), or "one_batch" (the workers' examples as one
        batch).
      micro: examples per pass, gradients accumulated over passes; only "one_batch".
      scanned: False compiles a single step, ``index [1, W, b]``, without a loop.
    """
    take = partial(GRADIENTS[gradient], loss)
    if micro:
        take = partial(_accumulated, take, micro)

    def device(state, pixels, labels, index):  # index [T, W / devices, b]
        def step(state, index):
            keys = _step_keys(state.keys, state.step)
            grads = _all_mean(take(state.params, pixels, labels, index, keys), devices)
            new, inner = optimizer.update(state.params, grads, state.inner)
            return State(new, inner, {}, state.step + 1, state.keys), None

        if not scanned:
            return step(state, index[0])[0]
        return lax.scan(step, state, index)[0]

    state = State(params, optimizer.init(params), {}, jnp.int32(0), _keys(workers))
    shards = State(EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE, WORKERS)
    return _compile(device, state, shards, (workers, batch), 1, devices)


def local(
    params, loss, inner, outer=None, *, workers, local_steps, batch, devices=1, lanes
):
    """Rounds of H local steps per worker, then the mean or an outer optimizer's step.

    Every worker starts a round at the shared model x and keeps its optimizer state:
    ``x <- mean_w(x_w)`` without ``outer``, else ``x <- outer(x, x - mean_w(x_w))``.

    Args:
      params: the model's parameters.
      loss: (params, pixels, labels, key) -> mean loss of a batch.
      inner: optimizer of each worker.
      outer: optimizer of the shared model, or None.
      workers: W.
      local_steps: H.
      batch: examples of one worker.
      devices: CPU devices, each with W / devices of the workers.
      lanes: how a device trains its workers: "vmapped", "serial" (one after the
        other, a whole round each), or "unrolled" (as serial, step by step).
    """
    advance = partial(LANES[lanes], loss, inner)

    def device(state, pixels, labels, index):  # index [T, H, W / devices, b]
        def round_(state, index):
            mean, optimizer = advance(state, pixels, labels, index)
            mean, step = _all_mean(mean, devices), state.step + local_steps
            if outer is None:
                return State(mean, optimizer, {}, step, state.keys), None
            delta = jax.tree.map(jnp.subtract, state.params, mean)
            new, slow = outer.update(state.params, delta, state.outer)
            return State(new, optimizer, slow, step, state.keys), None

        return lax.scan(round_, state, index)[0]

    each = _copies(inner.init(params), workers)
    slow = outer.init(params) if outer else {}
    state = State(params, each, slow, jnp.int32(0), _keys(workers))
    shards = State(EVERYWHERE, WORKERS, EVERYWHERE, EVERYWHERE, WORKERS)
    return _compile(device, state, shards, (local_steps, workers, batch), 2, devices)


def _vmapped(loss, params, pixels, labels, index, keys):
    each = jax.vmap(jax.grad(loss), (None, 0, 0, 0))
    return _mean(each(params, pixels[index], labels[index], keys))


def _in_turn(loss, params, pixels, labels, index, keys):
    def add(total, worker):
        index, key = worker
        grads = jax.grad(loss)(params, pixels[index], labels[index], key)
        return jax.tree.map(lambda t, g: t + g / len(keys), total, grads), None

    return lax.scan(add, jax.tree.map(jnp.zeros_like, params), (index, keys))[0]


def _of_mean(loss, params, pixels, labels, index, keys):
    def mean_loss(params):
        each = jax.vmap(loss, (None, 0, 0, 0))
        return jnp.mean(each(params, pixels[index], labels[index], keys))

    return jax.grad(mean_loss)(params)


def _one_batch(loss, params, pixels, labels, index, keys):
    index = index.reshape(-1)
    return jax.grad(loss)(params, pixels[index], labels[index], keys[0])


def _accumulated(take, micro, params, pixels, labels, index, keys):
    parts = index.reshape(-1, 1, micro)

    def add(total, part):
        grads = take(params, pixels, labels, part, keys)
        return jax.tree.map(lambda t, g: t + g / len(parts), total, grads), None

    return lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)[0]


def _vmapped_lanes(loss, inner, state, pixels, labels, index):
    lanes = index.shape[1]

    def step(carry, index):  # index [W / devices, b]
        params, optimizer, number = carry
        keys = _step_keys(state.keys, number)
        grads = jax.vmap(jax.grad(loss))(params, pixels[index], labels[index], keys)
        params, optimizer = jax.vmap(inner.update)(params, grads, optimizer)
        return (params, optimizer, number + 1), None

    start = (_copies(state.params, lanes), state.inner, state.step)
    params, optimizer, _ = lax.scan(step, start, index)[0]
    return _mean(params), optimizer


def _serial_lanes(loss, inner, state, pixels, labels, index):
    lanes = index.shape[1]

    def worker(total, inputs):
        optimizer, index, key = inputs

        def step(carry, index):
            params, optimizer, number = carry
            key_now = jax.random.fold_in(key, number)
            grads = jax.grad(loss)(params, pixels[index], labels[index], key_now)
            return (*inner.update(params, grads, optimizer), number + 1), None

        start = (state.params, optimizer, state.step)
        params, optimizer, _ = lax.scan(step, start, index)[0]
        return jax.tree.map(lambda t, p: t + p / lanes, total, params), optimizer

    inputs = (state.inner, index.swapaxes(0, 1), state.keys)
    return lax.scan(worker, jax.tree.map(jnp.zeros_like, state.params), inputs)


def _unrolled_lanes(loss, inner, state, pixels, labels, index):
    lanes = index.shape[1]

    def step(carry, index):
        workers, number = carry
        new = []
        for (params, optimizer), i, key in zip(
            workers, index, _step_keys(state.keys, number), strict=True
        ):
            grads = jax.grad(loss)(params, pixels[i], labels[i], key)
            new.append(inner.update(params, grads, optimizer))
        return (new, number + 1), None

    pick = lambda lane: jax.tree.map(lambda leaf: leaf[lane], state.inner)
    start = [(state.params, pick(lane)) for lane in range(lanes)]
    workers, _ = lax.scan(step, (start, state.step), index)[0]
    params = jax.tree.map(lambda *p: sum(p) / lanes, *[p for p, _ in workers])
    return params, jax.tree.map(lambda *o: jnp.stack(o), *[o for _, o in workers])


def _keys(workers: int) -> Array:
    """A key of each worker."""
    return jax.random.split(jax.random.key(0), workers)


def _step_keys(keys: Array, step: Array) -> Array:
    """The keys of one step; without dropout nothing uses them, and XLA drops them."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, step)


def _copies(tree, count: int):
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


def _mean(tree):
    """Mean over the lanes: as a product, for XLA CPU reduces a leading axis slowly."""
    return jax.tree.map(
        lambda x: jnp.tensordot(jnp.full(len(x), 1 / len(x)), x, axes=1), tree
    )


def _all_mean(tree, devices: int):
    """Mean over the devices."""
    return lax.pmean(tree, "devices") if devices > 1 else tree


def _compile(device, state, shards, shape, worker_axis, devices) -> Loop:
    """Jit a device's loop, under shard_map where there are several devices."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("devices",))
    spec = PartitionSpec(*[None] * worker_axis, "devices")
    place = lambda tree, spec: jax.device_put(tree, NamedSharding(mesh, spec))
    state = State(*map(place, jax.tree.map(jnp.copy, state), shards))
    if devices > 1:
        specs = (shards, EVERYWHERE, EVERYWHERE, spec)
        device = jax.shard_map(
            device, mesh=mesh, in_specs=specs, out_specs=shards, check_vma=False
        )
    run = jax.jit(device, donate_argnums=0)
    at = partial(NamedSharding, mesh)
    return Loop(state, run, shape, at(EVERYWHERE), at(spec))


GRADIENTS = {
    "vmapped": _vmapped,
    "in_turn": _in_turn,
    "of_mean": _of_mean,
    "one_batch": _one_batch,
}
LANES = {
    "vmapped": _vmapped_lanes,
    "serial": _serial_lanes,
    "unrolled": _unrolled_lanes,
}
