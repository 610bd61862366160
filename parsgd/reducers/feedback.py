"""Error feedback: what compression drops is added to the next gradient.

Seide et al. 2014; Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient
Compression Schemes", ICML 2019.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.compressors import Compressor, pays


class FeedbackState(NamedTuple):
    """State of `error_feedback`.

    Attributes:
        error: What has not been sent yet, ``float32``, for each leaf that is
            compressed, by the leaf's path.
    """

    error: dict[str, jax.Array]


def error_feedback(compressor: Compressor) -> optax.GradientTransformation:
    """Average compressed gradients; keep what each worker could not send.

    For each leaf with gradient g and residual e::

        v = g + e,   q = decode(encode(v)),   e <- v - q,   g <- mean(q)

    Every worker gathers the W payloads and decodes them, so the average has the same
    bits everywhere, and ``q + e_new = g + e_old`` holds to rounding. Leaves for which
    compression does not pay (`parsgd.compressors.pays`) are averaged as they are.

    Args:
        compressor: The code.

    Raises:
        ValueError: The residual's leaves are not those of the gradient, as after the
            model was renamed or reshaped; names the path.
    """

    def init(params):
        leaves = jax.tree.leaves_with_path(params)
        return FeedbackState(
            {
                jax.tree_util.keystr(path): jnp.zeros(x.shape, jnp.float32)
                for path, x in leaves
                if pays(compressor, x)
            }
        )

    def reduce(path: str, g: jax.Array, error: dict[str, jax.Array]) -> tuple:
        if not pays(compressor, g):
            return comm.mean(g), None
        if path not in error or error[path].shape != g.shape:
            raise ValueError(
                f"no residual of shape {g.shape} for {path}: the state belongs to "
                f"another model (it has {sorted(error)}); initialise it anew"
            )
        v = g.astype(jnp.float32) + error[path]
        payload = compressor.encode(v)
        q = compressor.decode(payload, v)
        gathered = comm.gather(payload)
        decoded = [
            compressor.decode(jax.tree.map(lambda p, w=w: p[w], gathered), v)
            for w in range(comm.world())
        ]
        # One addition after the other fuses with the decoding.
        average = functools.reduce(jnp.add, decoded) / comm.world()
        return average.astype(g.dtype), v - q

    def update(updates: Any, state: Any, params: Any = None):
        del params
        leaves, tree = jax.tree.flatten_with_path(updates)
        out, error = [], {}
        for path, g in leaves:
            name = jax.tree_util.keystr(path)
            reduced, residual = reduce(name, g, state.error)
            out.append(reduced)
            if residual is not None:
                error[name] = residual
        return jax.tree.unflatten(tree, out), FeedbackState(error)

    return optax.GradientTransformation(init, update)
