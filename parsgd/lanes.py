"""Workers that share a device: which of their values are equal, and taking turns.

Lanes are workers that vmap runs together on one device. While it traces a program, vmap
knows of every value whether it depends on the lane. A value that does not is equal on
all workers, whatever the data, and needs to be stored only once.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from parsgd.comm import LANES


def shared_outputs(fn: Callable, workers: int, args: tuple, shared: tuple) -> Any:
    """Which outputs of ``fn`` are equal on all workers, whatever the data.

    Args:
        fn: One worker's program.
        workers: W.
        args: Arguments as stored: leaves that differ have a leading worker axis.
        shared: For each argument the tree (or one bool) of what workers share.

    Returns:
        A bool for each leaf of the outputs.
    """
    if workers == 1:
        return jax.tree.map(
            lambda _: True, jax.eval_shape(fn, *one_worker(args, shared))
        )
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
        lambda *a: probe(fn(*a)), axes(shared), axis_name=LANES, axis_size=workers
    )
    out = jax.eval_shape(lanes, *args)
    if not seen:  # nothing depends on the lane, so the probe was not batched at all
        return jax.tree.map(lambda _: True, out)
    return jax.tree.map(lambda batched: not batched, seen[-1])


def together(fn: Callable) -> Callable:
    """``fn`` as it is: vmap runs lanes together."""
    return fn


def in_turn(fn: Callable) -> Callable:
    """``fn``, but lanes that vmap would run together run it one after the other.

    One worker's arrays then stay in the cache while it works. A lane's results replace
    its own arguments of the same shape and type, in the loop's copy: it has read them
    by then, and no other lane reads them.

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
        shared_in = jax.tree.map(lambda b: not b, tuple(batched))
        shared, out_tree = jax.tree.flatten(shared_outputs(fn, lanes, args, shared_in))
        same_as, replaces = _places(fn, leaves, tree, own, shared, lanes)
        written = [i for i in replaces if i is not None]
        read = [i for i, b in enumerate(own) if b and i not in written]

        def turn(carry, lane):
            pick = [*leaves]
            for i in read:
                pick[i] = lax.dynamic_index_in_dim(leaves[i], lane, keepdims=False)
            for i, x in zip(written, carry, strict=True):
                pick[i] = lax.dynamic_index_in_dim(x, lane, keepdims=False)
            out = jax.tree.leaves(fn(*jax.tree.unflatten(tree, pick)))
            out = [x for x, place in zip(out, same_as, strict=True) if place is None]
            new = iter(x for x, i in zip(out, replaces, strict=True) if i is not None)
            carry = [
                lax.dynamic_update_index_in_dim(x, next(new), lane, 0) for x in carry
            ]
            return carry, [x for x, i in zip(out, replaces, strict=True) if i is None]

        # What a worker returns unchanged, such as an anchor, is not copied.
        start = [leaves[i] for i in written]
        carry, new = map(iter, lax.scan(turn, start, jnp.arange(lanes)))
        places = iter(replaces)
        out = []
        for place, same in zip(same_as, shared, strict=True):
            if place is not None:
                out.append(leaves[place])
            else:
                x = next(new) if next(places) is None else next(carry)
                out.append(x[0] if same else x)
        differs = [
            not same if place is None else own[place]
            for place, same in zip(same_as, shared, strict=True)
        ]
        return jax.tree.unflatten(out_tree, out), jax.tree.unflatten(out_tree, differs)

    return turns


def _places(
    fn: Callable,
    leaves: Sequence[Any],
    tree: Any,
    own: Sequence[bool],
    shared: Sequence[bool],
    lanes: int,
) -> tuple[list[int | None], list[int | None]]:
    """Which argument each output is, or else may replace; None where there is none.

    Args:
        fn: One worker's program.
        leaves: Of its arguments, as stored for all lanes.
        tree: Their structure.
        own: Which of them have a lane axis.
        shared: Which outputs all lanes share.
        lanes: How many there are.

    Returns:
        For each output the argument that it is; and for each output that is none, the
        argument that it may replace.
    """
    same_as: list[int | None] = []
    outputs: list[Any] = []

    def look(*pick):
        out = jax.tree.leaves(fn(*jax.tree.unflatten(tree, pick)))
        given = {id(x): i for i, x in enumerate(pick)}
        same_as[:] = [given.get(id(x)) for x in out]
        outputs[:] = [jax.typeof(x) for x in out]
        return out

    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    jax.eval_shape(look, *one_worker(specs, [not b for b in own]))
    free = [i for i, b in enumerate(own) if b and i not in same_as]
    replaces: list[int | None] = []
    for x, place, same in zip(outputs, same_as, shared, strict=True):
        if place is not None:
            continue
        stored = ((lanes, *x.shape), x.dtype)
        fits = (i for i in free if (leaves[i].shape, leaves[i].dtype) == stored)
        replaces.append(None if same else next(fits, None))
        if replaces[-1] is not None:
            free.remove(replaces[-1])
    return same_as, replaces


def axes(shared: Any) -> Any:
    """The axes that vmap maps over, from a tree of what workers share."""
    return jax.tree.map(lambda same: None if same else 0, shared)


def prefixed(function: Callable, shared: Any, tree: Any) -> Any:
    """Map ``function(shared, leaf)`` where ``shared`` is a prefix of ``tree``."""
    return jax.tree.map(
        lambda same, part: jax.tree.map(functools.partial(function, same), part),
        shared,
        tree,
    )


def one_worker(tree: Any, shared: Any) -> Any:
    """The first worker's part: the worker axis dropped."""
    return prefixed(lambda same, x: x if same else _first(x), shared, tree)


def _first(x: Any) -> Any:
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    return x[0]
