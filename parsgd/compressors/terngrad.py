"""TernGrad: minus one, zero or plus one times the largest absolute value.

Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
Learning", NeurIPS 2017.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parsgd import comm
from parsgd.compressors.base import Compressor, Key
from parsgd.compressors.groups import absmax, flat32, inverse, map_groups, total
from parsgd.compressors.packing import pack, unpack
from parsgd.compressors.rounding import round_randomly
from parsgd.errors import UserError


class TernGrad(NamedTuple):
    """Payload of `terngrad`.

    Attributes:
        codes: ``sign + 1`` of each entry, of 2 bits, packed as in
            `parsgd.compressors.packing`: ``uint8 [2 ceil(n / 8)]``.
        scale: s, ``float32 [1]``.
    """

    codes: jax.Array
    scale: jax.Array


def terngrad(*, clip: float | None = 2.5, share_scale: bool = False) -> Compressor:
    """Each entry becomes -s, 0 or s at random, such that the mean is the entry.

    For an array g of n entries, with u uniform in [0, 1)::

        v = clip(g, -c sigma, c sigma),   s = max |v|,   q = s * floor(v / s + u)

    so that q is nonzero with probability ``|v| / s``, ``E[q] = v`` and the variance,
    summed over the array, is ``s |v|_1 - |v|^2``. It may be many times ``|v|^2``: the
    compressor is not fit for error feedback. With clipping it is unbiased for v, not
    for g. Zeros decode to zeros; an array that is not finite decodes to nothing finite.

    Args:
        clip: c > 0, in standard deviations; None for no clipping.
        share_scale: Whether s is the largest of all workers' s, as in the paper, where
            the ternary values themselves can then be added up on the way. Each clips
            at its own c sigma all the same. That costs one more message, of one number.

    Returns:
        A compressor of ``2 ceil(n / 8) + 4`` bytes.

    Raises:
        UserError: ``clip`` is not positive.
        ValueError: From ``encode``: no key.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from parsgd.compressors import terngrad
        >>> compressor = terngrad(clip=None)
        >>> v = jnp.array([-3.0, 0.0, 3.0])
        >>> compressor.decode(compressor.encode(v, jax.random.key(0)), v, None)
        Array([-3.,  0.,  3.], dtype=float32)

    References:
        Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed
        Deep Learning", NeurIPS 2017, arXiv:1705.07878.

    Differences from the paper:
        sigma is taken around zero, ``sqrt(mean(g^2))``, not around the mean: an array
        of equal entries would be clipped to zero otherwise. Each worker has a scale of
        its own unless ``share_scale`` is set.
    """
    if clip is not None and not clip > 0:
        raise UserError(f"clip={clip}: use a positive number, such as 2.5, or None")

    def quantise(v, factor, start, extra):
        key, bound = extra
        v = v * factor
        if bound is not None:
            v = jnp.clip(v, -bound, bound)
        q = round_randomly(v, 1, key, start)  # which clips at 1
        return (q + 1).astype(jnp.uint8)

    def encode(x: jax.Array, key: Key) -> TernGrad:
        if key is None:
            raise ValueError("terngrad rounds at random: encode needs a key")
        v = flat32(x)
        scale = absmax(v, None)
        if clip is not None:
            sigma = jnp.sqrt(total(v, jnp.square) / max(v.size, 1))
            # Squares of very small entries are zero.
            limit = jnp.where(sigma > 0, clip * sigma, scale)
            scale = jnp.where(scale > limit, limit, scale)
        # In units of s, which is c sigma where that is less: rounding clips at 1.
        bound = None
        if share_scale:
            own, scale = scale, comm.maximum(scale)
            bound = jnp.where(own < scale, own * inverse(scale, 1), 1.0)[0]
        codes = map_groups(quantise, v, inverse(scale, 1), None, (key, bound))
        return TernGrad(pack(codes, 2), scale)

    def decode(payload: TernGrad, like: Any, key: Key = None) -> jax.Array:
        del key
        codes = unpack(payload.codes, 2, like.size)
        v = (codes.astype(jnp.int32) - 1).astype(jnp.float32) * payload.scale
        return v.reshape(like.shape).astype(like.dtype)

    return Compressor(
        encode,
        decode,
        "terngrad",
        stochastic=True,
        exposes_nonfinite=True,
    )
