"""A small GPT over bytes: pre-norm blocks, causal attention, learned positions."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from parsgd.errors import UserError
from parsgd.models.classifier import Classifier, check_rate, check_sizes


class GPT(Classifier, kw_only=True):
    """Next-token logits of a decoder-only transformer.

    Per block, with LN a layer norm::

        x <- x + proj(softmax(mask(q k^T / sqrt(d))) v),   q, k, v = LN(x) W
        x <- x + W2 gelu(W1 LN(x))

    The sequence length is that of the input of `init`; the size of the vocabulary is
    ``classes``.

    Attributes:
        width: D, size of the residual stream; a multiple of ``heads``.
        layers: Number of blocks.
        heads: Attention heads of ``d = width / heads`` each.
        dropout: Rate on the embedding and on each branch of a block, in [0, 1).
        classes: Size of the vocabulary; None takes the data set's.

    Raises:
        UserError: A size below 1, a width that the heads do not divide, or a rate
            outside [0, 1).

    References:
        Radford et al, `Language Models are Unsupervised Multitask Learners
        <https://cdn.openai.com/better-language-models/
        language_models_are_unsupervised_multitask_learners.pdf>`_, 2019

    Example:
        >>> net = GPT(width=16, layers=1, heads=2, classes=256)
        >>> tokens = jnp.zeros((2, 8), jnp.int32)
        >>> logits, _ = jax.eval_shape(net.init_with_output, jax.random.key(0), tokens)
        >>> logits.shape
        (2, 8, 256)
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    dropout: float = 0.0

    def __post_init__(self):
        check_sizes("GPT", width=self.width, layers=self.layers, heads=self.heads)
        check_rate("GPT", self.dropout)
        if self.width % self.heads:
            raise UserError(
                f"GPT: width={self.width} cannot be shared by heads={self.heads}: "
                f"use width={-(-self.width // self.heads) * self.heads}."
            )
        super().__post_init__()

    @nn.compact
    def __call__(self, tokens: jax.Array, train: bool = False) -> jax.Array:
        """Logits ``[b, T, classes]`` of the tokens after each of ``tokens [b, T]``."""
        if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise UserError(
                f"GPT: inputs are {tokens.dtype}{tokens.shape}, not tokens [b, T]: use "
                "the text task, or another model for this one."
            )
        small = nn.initializers.normal(0.02)
        # Each block adds two branches to the stream: let all add the variance of one.
        branch = nn.initializers.normal(0.02 / (2 * self.layers) ** 0.5)
        if self.classes is None:
            raise UserError("GPT: set classes, the size of the vocabulary.")
        table = self.param("tokens", small, (self.classes, self.width))
        positions = self.param("positions", small, (1, tokens.shape[1], self.width))
        # As a product: the gradient of a lookup is a scatter, slow on CPU in a scan.
        ids = tokens.astype(jnp.int32)  # compared as bytes, 256 would be 0
        x = jax.nn.one_hot(ids, self.classes, dtype=table.dtype) @ table + positions
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        for _ in range(self.layers):
            y = nn.Dense(3 * self.width, kernel_init=small)(nn.LayerNorm()(x))
            y = _attention(y, self.heads)
            y = nn.Dense(self.width, kernel_init=branch)(y)
            x = x + nn.Dropout(self.dropout, deterministic=not train)(y)
            y = nn.Dense(4 * self.width, kernel_init=small)(nn.LayerNorm()(x))
            y = nn.Dense(self.width, kernel_init=branch)(nn.gelu(y))
            x = x + nn.Dropout(self.dropout, deterministic=not train)(y)
        return self.head(nn.LayerNorm()(x), use_bias=False, kernel_init=small)


def _attention(qkv: jax.Array, heads: int) -> jax.Array:
    """Causal attention, ``[b, T, 3 * D] -> [b, T, D]``, weights in float32."""
    b, length, _ = qkv.shape
    q, k, v = jnp.moveaxis(qkv.reshape(b, length, 3, heads, -1), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    causal = jnp.tril(jnp.ones((1, 1, length, length), bool))
    scores = jnp.where(causal, scores / q.shape[-1] ** 0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, length, -1)
