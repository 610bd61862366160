"""Flax linen modules as a `Model`."""

from typing import Any

import jax
from flax import linen as nn

from parsgd.models.base import Model, mode_keywords


def linen_model(module: nn.Module) -> Model:
    """The pure functions of a linen module; see `parsgd.models.as_model`.

    Args:
        module: An unbound instance. All its random streams (``dropout`` and any other)
            derive from the key of the call.
    """
    call = type(module).__call__

    def init(key, x):
        variables = module.init(_streams(key), x, **mode_keywords(call, train=False))
        variables = dict(nn.unbox(variables))
        return variables.pop("params", {}), variables

    def apply(params, model_state, x, *, key, train):
        mode = mode_keywords(call, train=train)
        # Without parameters there is no such collection: linen rejects an empty one.
        variables = {"params": params, **model_state} if params else {**model_state}
        rngs = None if key is None else _streams(key)
        if not train or not model_state:
            logits: Any = module.apply(variables, x, rngs=rngs, **mode)
            return logits, model_state
        logits, updated = module.apply(
            variables, x, rngs=rngs, mutable=list(model_state), **mode
        )
        return logits, {**model_state, **updated}

    return Model(init, apply)


def _streams(key: jax.Array) -> dict[str, jax.Array]:
    # Linen draws streams that have no key of their own from "params".
    params, dropout = jax.random.split(key)
    return {"params": params, "dropout": dropout}
