"""The gradient of a worker's batch, in parts, and averaged over workers.

The average has a program of its own: workers that share a device and their parameters
take one gradient of their mean loss, where XLA would not merge a gradient of each.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from parsgd import comm
from parsgd.lanes import shared_outputs

Params: TypeAlias = Any
Grads: TypeAlias = Any
State: TypeAlias = Any
Loss: TypeAlias = Callable[[Params, State, Any, jax.Array], tuple[jax.Array, State]]


# Of lanes' batches: apart, taken as one, or as one that is gone through in parts.
BatchUnion: TypeAlias = Literal["", "whole", "parts"]
PART = 32  # examples, at least


def gradient(
    loss: Loss,
    params: Params,
    model: State,
    batch: Any,
    key: jax.Array,
    micro_batches: int = 1,
) -> tuple[jax.Array, State, Grads]:
    """``(loss, model state, gradient)`` of one batch, in ``micro_batches`` equal parts.

    The parts' gradients are averaged in float32, so the result is the gradient of the
    whole batch to rounding, also for bfloat16 parameters.
    """
    grad = jax.value_and_grad(loss, has_aux=True)
    if micro_batches == 1:
        (value, model), grads = grad(params, model, batch, key)
        return value, model, grads

    def split(x):
        return x.reshape(micro_batches, x.shape[0] // micro_batches, *x.shape[1:])

    def part(carry, xs):
        model, sums = carry
        piece, index = xs
        (value, new), g = grad(params, model, piece, jax.random.fold_in(key, index))
        model = jax.tree.map(_as_before, model, new)
        return (model, _added(sums, g)), value

    parts = (jax.tree.map(split, batch), jnp.arange(micro_batches))
    (model, sums), values = lax.scan(part, (model, _zeros(params)), parts)
    value = jnp.mean(values, dtype=jnp.promote_types(values.dtype, jnp.float32))
    return value, model, _mean_of(sums, micro_batches, params)


def _zeros(params: Params) -> Grads:
    """Where gradients are summed, in float32 at least."""

    def zeros(p):
        return jnp.zeros(p.shape, jnp.promote_types(p.dtype, jnp.float32))

    return jax.tree.map(zeros, params)


def _added(sums: Grads, grads: Grads) -> Grads:
    return jax.tree.map(lambda s, g: s + g.astype(s.dtype), sums, grads)


def _mean_of(sums: Grads, count: int, params: Params) -> Grads:
    return jax.tree.map(lambda s, p: (s / count).astype(p.dtype), sums, params)


def _as_before(old: Any, new: Any) -> Any:
    """An array of the model's state in the type that it had."""
    return new if new.dtype == old.dtype else new.astype(old.dtype)


def _parts(examples: int) -> int:
    """How many equal parts of at least `PART` examples there are.

    Example:
        >>> [_parts(count) for count in (20, 64, 96, 120, 131)]
        [1, 2, 3, 3, 1]
    """
    most = max(1, examples // PART)
    return max(k for k in range(1, most + 1) if examples % k == 0)


def mean_gradient(
    loss: Loss,
    params: Params,
    model: State,
    batch: Any,
    key: jax.Array,
    micro_batches: int = 1,
    *,
    union: BatchUnion = "",
    in_turn: bool = False,
) -> tuple[jax.Array, State, Grads]:
    """As `gradient`, but the gradient is the average over all workers.

    Where lanes share their parameters it is taken of the lanes' mean loss: one product
    over all their examples instead of one each and a sum, which XLA does not merge.
    With ``union`` their batches are taken as one, and the loss is that batch's: the
    ``"whole"`` of it at once, or in ``"parts"`` that fit a cache. Otherwise, and
    ``in_turn``, one lane after the other adds its gradient.
    """

    @custom_vmap
    def over_lanes(params, model, batch, key):
        return gradient(loss, params, model, batch, key, micro_batches)

    @over_lanes.def_vmap
    def _(lanes, batched, params, model, batch, key):
        args = (params, model, batch, key)
        axes = jax.tree.map(lambda b: 0 if b else None, batched)
        apart = any(jax.tree.leaves(batched[0]))
        if union and not apart:
            batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
            parts = _parts(len(jax.tree.leaves(batch)[0])) if union == "parts" else 1
            out = gradient(
                loss, params, model, batch, key[0], max(parts, micro_batches)
            )
            return out, jax.tree.map(lambda _: False, out)
        if in_turn:
            like = jax.tree.map(lambda b, p: p[0] if b else p, batched[0], params)

            def turn(sums, lane):
                params, model, batch, key = jax.tree.map(
                    lambda b, x: x[lane] if b else x, (*batched,), args
                )
                value, model, grads = gradient(
                    loss, params, model, batch, key, micro_batches
                )
                return _added(sums, grads), (value, model)

            sums, (value, model) = lax.scan(turn, _zeros(like), jnp.arange(lanes))
            grads = _mean_of(sums, lanes, like)
        elif micro_batches > 1 or apart:
            own = functools.partial(gradient, loss, micro_batches=micro_batches)
            value, model, grads = jax.vmap(own, axes, axis_name=comm.LANES)(*args)
            grads = comm.mean_of_lanes(grads)
        else:

            def mean_loss(params):
                each = jax.vmap(loss, axes, axis_name=comm.LANES)
                value, new = each(params, *args[1:])
                return jnp.mean(value), (value, new)

            grads, (value, model) = jax.grad(mean_loss, has_aux=True)(params)
        # Such as a step count of the model, which all lanes share.
        same = jax.tree.map(lambda b: not b, tuple(batched))
        shared = shared_outputs(loss, lanes, args, same)[1]
        model = jax.tree.map(lambda same, x: x[0] if same else x, shared, model)
        own = jax.tree.map(lambda same: not same, shared)
        mean = jax.tree.map(lambda _: False, grads)
        return (value, model, grads), (True, own, mean)

    value, model, grads = over_lanes(params, model, batch, key)
    return value, model, comm.mean_over_devices(grads)
