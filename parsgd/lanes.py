"""Workers that share a device: which of their values are equal, and taking turns.

Lanes are workers that vmap runs together on one device. While it traces a program vmap
knows for every value whether it depends on the lane. What does not is equal on all
workers, whatever the data, and need be stored only once.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.custom_batching import custom_vmap

from parsgd.comm import LANES


def shared_outputs(fn: Callable, workers: int, args: tuple, shared: tuple) -> Any:
    """Which outputs of ``fn`` are equal on all workers whatever the data: a bool tree.

    Args:
        fn: One worker's program.
        workers: W.
        args: Arguments as stored: leaves that differ have a leading worker axis.
        shared: For each argument the tree (or one bool) of what workers share.
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


def in_turn(fn: Callable) -> Callable:
    """``fn``, but lanes that vmap would run together run it one after the other.

    One worker's arrays then stay in the cache while it works.

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
        kept: list[int | None] = []  # for each output the input that it is

        def lane(mine):
            mine = iter(mine)
            pick = [next(mine) if b else x for x, b in zip(leaves, own, strict=True)]
            out = jax.tree.leaves(fn(*jax.tree.unflatten(tree, pick)))
            places = {id(x): i for i, x in enumerate(pick)}
            kept[:] = [places.get(id(x)) for x in out]
            return [x for x, place in zip(out, kept, strict=True) if place is None]

        # What a worker hands on as it got it, such as an anchor, is not copied.
        new = iter(lax.map(lane, [x for x, b in zip(leaves, own, strict=True) if b]))
        out = []
        for place, same in zip(kept, shared, strict=True):
            if place is not None:
                out.append(leaves[place])
            else:
                x = next(new)
                out.append(x[0] if same else x)
        differs = [
            not same if place is None else own[place]
            for place, same in zip(kept, shared, strict=True)
        ]
        return jax.tree.unflatten(out_tree, out), jax.tree.unflatten(out_tree, differs)

    return turns


def axes(shared: Any) -> Any:
    """Vmap's axes for a tree of what workers share."""
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
