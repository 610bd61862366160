"""Flax nnx modules as a `Model`: split into arrays, and merged again in each call."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import Tracer

from parsgd.errors import UserError
from parsgd.models.base import Model, mode_keywords

# What a call sows is for inspection, and not state.
KINDS = (nnx.Param, nnx.RngState, nnx.Intermediate, ...)


def is_nnx_module(module: Any) -> bool:
    """Whether ``module`` is an nnx module that was built already."""
    return isinstance(module, nnx.Module)


def nnx_model(factory: Callable[..., Any]) -> Model:
    """The pure functions of an nnx module; see `parsgd.models.as_model`.

    Parameters and model state are plain nested dicts of arrays. Random streams are no
    state: every call derives them from its key, so that a resumed run draws what an
    uninterrupted one would.

    Args:
        factory: Takes ``nnx.Rngs`` (as ``rngs=`` if it has such an argument) and
            returns the module.
    """

    def build(key):
        rngs = nnx.Rngs(key)
        module = factory(rngs=rngs) if _names_rngs(factory) else factory(rngs)
        if not isinstance(module, nnx.Module):
            raise UserError(
                f"model: {factory!r} returned {type(module).__name__}, not a flax nnx "
                "module: pass a callable from nnx.Rngs to a module."
            )
        _declare_arrays(module)
        return nnx.split(module, *KINDS)

    @functools.cache
    def blueprint():
        """The structure without arrays, from an abstract call: nothing is computed."""
        return jax.eval_shape(build, jax.ShapeDtypeStruct((), _key_dtype()))

    def init(key, x):
        del x
        _, params, _, _, rest = build(key)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(rest)

    def apply(params, model_state, x, *, key, train):
        graph, param_slots, streams, sown, rest_slots = blueprint()
        module = nnx.merge(
            graph,
            _filled(param_slots, params),
            _seeded(streams, jax.random.key(0) if key is None else key),
            sown,
            _filled(rest_slots, model_state),
        )
        module.train() if train else module.eval()
        logits = module(x, **mode_keywords(type(module).__call__, train=train))
        if not train:
            return logits, model_state
        _, _, _, rest = nnx.state(module, *KINDS)
        return logits, nnx.to_pure_dict(rest)

    return Model(init, apply)


def _names_rngs(factory: Callable[..., Any]) -> bool:
    while isinstance(factory, functools.partial):
        factory = factory.func
    # The signature of an nnx class itself is that of its metaclass: (*args, **kwargs).
    build = factory.__init__ if isinstance(factory, type) else factory
    return "rngs" in inspect.signature(build).parameters


def _declare_arrays(module: nnx.Module) -> None:
    """Make arrays that are plain attributes state in a trace, as they are outside one.

    Flax does not always recognise a traced array, and keeps it as a constant of the
    module's structure, which outlives the trace.
    """
    for _, node in nnx.iter_graph(module):
        if not isinstance(node, nnx.Pytree):
            continue
        for name, value in [*vars(node).items()]:
            leaves = jax.tree.leaves(value)
            if any(isinstance(leaf, Tracer) for leaf in leaves):
                setattr(node, name, nnx.data(value))


def _key_dtype():
    return jax.eval_shape(lambda: jax.random.key(0)).dtype


def _filled(slots: nnx.State, arrays: dict) -> nnx.State:
    """A copy of the structure ``slots`` that holds ``arrays``."""
    state = jax.tree.map(lambda slot: slot, slots)
    nnx.replace_by_pure_dict(state, arrays)
    return state


def _seeded(streams: nnx.State, key: jax.Array) -> nnx.State:
    """Every stream with a key of its own, drawn from ``key``, and a count of zero."""
    leaves, structure = jax.tree.flatten(streams)

    def fresh(i, leaf):
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.zeros(leaf.shape, leaf.dtype)
        own = jax.random.fold_in(key, i)
        # Several keys if nnx.split_rngs has split the stream, as for layers in a scan.
        return jax.random.split(own, leaf.shape) if leaf.shape else own

    return jax.tree.unflatten(structure, [fresh(*pair) for pair in enumerate(leaves)])
