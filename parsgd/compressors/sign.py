"""One bit per entry: the sign, with two levels per group, one scale, or nothing else.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
Distributed Training of Speech DNNs", Interspeech 2014; Bernstein et al., "signSGD:
Compressed Optimisation for Non-Convex Problems", ICML 2018; Karimireddy et al., "Error
Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parsgd.compressors.base import Compressor, Key
from parsgd.compressors.column_sums import column_counts, column_sums
from parsgd.compressors.groups import absmax, flat32, total, unit_of
from parsgd.compressors.packing import unpack_bits
from parsgd.errors import check_choice

GROUPS = ("column", "leaf")
ZEROS = ("positive", "negative")
NORMS = ("l1", "l2")


class OneBit(NamedTuple):
    """Payload of `one_bit`.

    Attributes:
        bits: ``uint8 [ceil(n / 8)]`` as of ``packbits``, set where the entry is >= 0:
            entry i is bit ``7 - i % 8`` of byte ``i // 8``.
        low: Mean of each group's negative entries, ``float32 [groups]``.
        high: Mean of each group's other entries, ``float32 [groups]``.
    """

    bits: jax.Array
    low: jax.Array
    high: jax.Array


class ScaledSign(NamedTuple):
    """Payload of `scaled_sign` and `sign`.

    Attributes:
        bits: ``uint8 [ceil(n / 8)]`` as of ``packbits``, set where the entry counts as
            positive.
        scale: What a positive entry decodes to, ``float32 [1]``.
    """

    bits: jax.Array
    scale: jax.Array


def one_bit(*, levels: str = "column") -> Compressor:
    """The sign of each entry, decoded to the mean of its group's entries of that sign.

    For the entries v of one group::

        high = mean(v[v >= 0]),   low = mean(v[v < 0]),   q = high if v >= 0 else low

    The two means minimise the squared error for the threshold 0, and what is lost,
    ``v - q``, sums to zero over each sign of each group. Zero counts as positive. A
    group without entries of a sign has that level 0.

    Args:
        levels: ``"column"``: a group is all that feeds one output unit, i.e. everything
            but the last axis of a weight array (the paper's columns). ``"leaf"``: the
            whole array is one group.

    Returns:
        A compressor of ``ceil(n / 8) + 8 groups`` bytes for n entries; contracts.

    Raises:
        UserError: Unknown ``levels``.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import one_bit
        >>> compressor = one_bit(levels="leaf")
        >>> v = jnp.array([[1.0, -2.0], [3.0, -4.0]])
        >>> compressor.decode(compressor.encode(v), v)
        Array([[ 2., -3.],
               [ 2., -3.]], dtype=float32)

    References:
        Seide et al., "1-Bit Stochastic Gradient Descent and its Application to
        Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014.

    Differences from the paper:
        Zero counts as positive, and a group without entries of a sign has the level 0
        for it; the paper leaves both open. One pair of levels for a whole
        array, ``levels="leaf"``, is not in the paper.
    """
    check_choice("levels", levels, GROUPS)

    def columns(like) -> int:
        # An array of no columns is one group of nothing.
        return (like.shape[-1] or 1) if levels == "column" and like.shape else 1

    def encode(x: jax.Array, key: Key = None) -> OneBit:
        return encode_padded(x, 0, key)

    def encode_padded(x: jax.Array, zeros: Any, key: Key = None) -> OneBit:
        del key
        v = flat32(x)
        width = columns(x)
        n_high = column_counts(v, width=width)
        n_low = x.size // width - n_high
        n_high = n_high - zeros
        # A column that is not a number has no finite level, and no other is touched.
        high = column_sums(v, fn="high", width=width) / jnp.maximum(n_high, 1)
        low = column_sums(v, fn="low", width=width) / jnp.maximum(n_low, 1)
        return OneBit(jnp.packbits(v >= 0), low, high)

    def decode(payload: OneBit, like: Any, key: Key = None) -> jax.Array:
        del key
        positive = unpack_bits(payload.bits, like.size)
        rows = positive.reshape(-1, columns(like)) == 1
        v = jnp.where(rows, payload.high[None], payload.low[None])
        return v.reshape(like.shape).astype(like.dtype)

    return Compressor(
        encode,
        decode,
        "one_bit",
        contracts=True,
        exposes_nonfinite=True,
        # Columns that are added are groups of their own.
        encode_padded=encode_padded if levels == "leaf" else None,
    )


def scaled_sign(*, zero: str = "positive", norm: str = "l1") -> Compressor:
    """The sign of each entry times the array's mean size, as in EF-signSGD.

    For an array v of n entries::

        l1   q = |v|_1 / n * sign(v),   |v - q|^2 = (1 - |v|_1^2 / (n |v|_2^2)) |v|_2^2
        l2   q = |v|_2 / sqrt(n) * sign(v),   |q|_2 = |v|_2

    An array of zeros decodes to zeros; other zeros do not, since a bit has two values.
    An array that is not finite decodes to nothing finite.

    Args:
        zero: The sign of zero, ``"positive"`` or ``"negative"``.
        norm: Of which the size is, ``"l1"``, or ``"l2"`` as in the implementation of
            1-bit Adam.

    Returns:
        A compressor of ``ceil(n / 8) + 4`` bytes. It contracts with ``"l1"``; with
        ``"l2"`` only where ``|v|_1 > sqrt(n) |v|_2 / 2``, as for entries of similar
        sizes, but not for sparse ones. Error feedback refuses that but in
        `parsgd.one_bit_adam` and `parsgd.zero_one_adam`, whose own it is.

    Raises:
        UserError: Unknown ``zero`` or ``norm``.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import scaled_sign
        >>> compressor = scaled_sign()
        >>> v = jnp.array([1.0, -2.0, 3.0])
        >>> compressor.decode(compressor.encode(v, None), v, None)
        Array([ 2., -2.,  2.], dtype=float32)

    References:
        Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
        Schemes", ICML 2019, arXiv:1901.09847.

    Differences from the paper:
        One bit cannot say zero, which counts as ``zero`` says.
    """
    positive = _positive(zero)
    check_choice("norm", norm, NORMS)

    def size(v: jax.Array, count: Any) -> jax.Array:
        if norm == "l1":
            return total(v, jnp.abs) / count
        top = absmax(v, None)[0]
        down, unit = unit_of(top)
        return top * jnp.sqrt(total(v * down / unit, jnp.square) / count)

    def encode(x: jax.Array, key: Key = None) -> ScaledSign:
        return encode_padded(x, 0, key)

    def encode_padded(x: jax.Array, zeros: Any, key: Key = None) -> ScaledSign:
        del key
        v = flat32(x)
        scale = size(v, jnp.maximum(v.size - zeros, 1))
        return ScaledSign(jnp.packbits(positive(v)), scale[None])

    return Compressor(
        encode,
        _decode,
        "scaled_sign" if norm == "l1" else "scaled_sign of norm l2",
        contracts=norm == "l1",
        exposes_nonfinite=True,
        encode_padded=encode_padded,
        contracts_with="norm='l1'",
        preserves_norm=norm == "l2",
    )


def sign(*, zero: str = "positive") -> Compressor:
    """The sign without a size: each entry decodes to +1 or -1, as in signSGD.

    For an entry v::

        q = 1 if v >= 0 else -1

    The size is lost, so the step's size must come from elsewhere, and error feedback is
    no remedy. One number tells what bits cannot: an array of zeros decodes to zeros, so
    that a worker with nothing to say has no vote, and one that is not finite to NaN.

    Args:
        zero: The sign of other zeros, ``"positive"`` or ``"negative"``.

    Returns:
        A compressor of ``ceil(n / 8) + 4`` bytes.

    Raises:
        UserError: Unknown ``zero``.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import sign
        >>> compressor = sign()
        >>> v = jnp.array([0.1, -2.0, 0.0])
        >>> compressor.decode(compressor.encode(v, None), v, None)
        Array([ 1., -1.,  1.], dtype=float32)

    References:
        Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems",
        ICML 2018, arXiv:1802.04434.

    Differences from the paper:
        The paper's sign of zero is zero.
    """
    positive = _positive(zero)

    def encode(x: jax.Array, key: Key = None) -> ScaledSign:
        del key
        v = flat32(x)
        return ScaledSign(jnp.packbits(positive(v)), jnp.sign(absmax(v, None)))

    return Compressor(encode, _decode, "sign", exposes_nonfinite=True)


def _decode(payload: ScaledSign, like: Any, key: Key = None) -> jax.Array:
    del key
    bits = unpack_bits(payload.bits, like.size)
    v = jnp.where(bits == 1, payload.scale, -payload.scale)
    return v.reshape(like.shape).astype(like.dtype)


def _positive(zero: str) -> Callable[[jax.Array], jax.Array]:
    check_choice("zero", zero, ZEROS)
    return (lambda v: v >= 0) if zero == "positive" else (lambda v: v > 0)
