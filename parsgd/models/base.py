"""One interface for every kind of model: two pure functions.

`as_model` turns what users have (a flax linen module, a flax nnx class, a pair of pure
functions) into it. The adaptors for each library are in ``linen.py`` and ``nnx.py``.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import linen as nn

from parsgd.errors import UserError
from parsgd.gradient import Params, State


class Model(NamedTuple):
    """A model as two pure functions, which can be traced, vmapped and scanned.

    Attributes:
        init: ``(key, x) -> (params, model_state)`` with ``x`` a batch of model inputs
            ``[b, ...]``. ``params`` is what the optimizer moves; ``model_state`` holds
            everything else that changes in training (batch statistics), ``{}`` if
            nothing.
        apply: ``(params, model_state, x, *, key, train) -> (logits, model_state)``.
            ``train`` is a Python bool: dropout on and batch statistics of this batch,
            or off and running statistics. ``key`` may be None when ``train`` is False.
    """

    init: Callable[[jax.Array, jax.Array], tuple[Params, State]]
    apply: Callable[..., tuple[jax.Array, State]]


def as_model(module: Any) -> Model:
    """The `Model` of whatever describes one.

    Args:
        module: One of

            - a flax **linen** module, as an instance: ``Net(features=32)``. Every
              collection other than ``params`` is model state. A keyword ``train``,
              ``training``, ``is_training``, ``deterministic`` or
              ``use_running_average`` of its ``__call__`` is set by the mode.
            - a flax **nnx** class, or any callable that takes ``nnx.Rngs`` and returns
              a module: ``Net``, ``lambda rngs: Net(32, rngs=rngs)``, or
              ``functools.partial(Net, 32)``. ``nnx.Param`` variables are the
              parameters; every other variable but the random streams, and every
              array that is a plain attribute, is model state.
              ``train()`` and ``eval()`` set the mode.
            - a **pair** ``(init, apply)`` of pure functions without model state:
              ``init(key, x) -> params`` and ``apply(params, x) -> logits``, where
              ``apply`` may also have keywords ``key`` and ``train``.
            - a `Model`, returned as it is.

    Returns:
        The `Model`.

    Raises:
        UserError: ``module`` is not one of these.

    Example:
        >>> import jax.numpy as jnp
        >>> model = as_model((lambda key, x: {"w": jnp.ones((x.shape[1], 2))},
        ...                   lambda params, x: x @ params["w"]))
        >>> x = jnp.ones((1, 3))
        >>> params, state = model.init(jax.random.key(0), x)
        >>> logits, _ = model.apply(params, state, x, key=None, train=False)
        >>> logits.tolist()
        [[3.0, 3.0]]
    """
    from parsgd.models.linen import linen_model
    from parsgd.models.nnx import is_nnx_module, nnx_model

    if isinstance(module, Model):
        return module
    if isinstance(module, nn.Module):
        return linen_model(module)
    if is_nnx_module(module):
        raise UserError(
            f"model: {type(module).__name__} is an nnx module that exists already, so "
            "its parameters cannot be drawn from the run's seed: pass its class, or a "
            "function of the random streams: lambda rngs: "
            f"{type(module).__name__}(..., rngs=rngs)."
        )
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise UserError(
            f"model: {module.__name__} is a flax linen class: pass an instance, "
            f"{module.__name__}(...)."
        )
    if isinstance(module, tuple | list) and len(module) == 2:
        init, apply = module
        if callable(init) and callable(apply):
            return _pair_model(init, apply)
    if callable(module):
        return nnx_model(module)
    raise UserError(
        f"model: {module!r} is no model: pass a flax linen module, a callable from "
        "nnx.Rngs to a flax nnx module, or a pair (init, apply) of pure functions."
    )


def mode_keywords(call: Callable[..., Any], *, train: bool) -> dict[str, Any]:
    """The keywords of ``call`` that set the mode, if any, with their values."""
    names = inspect.signature(call).parameters
    modes = {
        "train": train,
        "training": train,
        "is_training": train,
        "deterministic": not train,
        "use_running_average": not train,
    }
    return {name: value for name, value in modes.items() if name in names}


def _pair_model(init: Callable[..., Any], apply: Callable[..., Any]) -> Model:
    takes_key = "key" in inspect.signature(apply).parameters

    def init_fn(key, x):
        return init(key, x), {}

    def apply_fn(params, model_state, x, *, key, train):
        keywords: dict[str, Any] = mode_keywords(apply, train=train)
        if takes_key:
            keywords["key"] = key
        return apply(params, x, **keywords), model_state

    return Model(init_fn, apply_fn)
