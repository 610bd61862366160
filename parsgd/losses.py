"""Losses of each example, in float32 whatever the model computes in."""

import jax
import jax.numpy as jnp


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """``[b]`` from logits ``[b, ..., classes]`` and labels ``[b, ...]``."""
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    # One-hot rows, since the gradient of a gather is a scatter, slow on CPU. They
    # choose and do not multiply: other classes may be ruled out, by a logit of -inf.
    ids = labels.astype(jnp.int32)  # it compares in their type, where 256 may be 0
    hot = jax.nn.one_hot(ids, logits.shape[-1], dtype=bool)
    return per_example(-jnp.sum(jnp.where(hot, log_p, 0.0), axis=-1))


def per_example(values: jax.Array) -> jax.Array:
    """Mean over all but the leading axis, ``[b, ...] -> [b]``."""
    return jnp.mean(values.reshape(values.shape[0], -1), axis=1)
