"""A few of the entries, and nothing of the rest: top-k, random-k, threshold."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from parsgd.compressors.base import Compressor, Key
from parsgd.compressors.checked import checked
from parsgd.compressors.groups import flat32
from parsgd.compressors.random import uniform_bits
from parsgd.compressors.scatter import added, packed, scatter, scattered
from parsgd.compressors.select import largest
from parsgd.errors import UserError, check_choice

SELECTIONS = ("exact", "sampled")


class Sparse(NamedTuple):
    """Payload of `top_k` and `threshold`.

    Attributes:
        values: What is sent of the chosen entries, in the order of their indices:
            ``float32 [k]``, or another compressor's payload of them as ``[k, 1]``.
        indices: `pack_indices` of them, ``uint8``; None if all entries are sent.
    """

    values: Any
    indices: jax.Array | None


class RandomK(NamedTuple):
    """Payload of `random_k`.

    Attributes:
        values: The chosen entries, ``float32 [k]``.
    """

    values: jax.Array


def kept(density: float, n: int) -> int:
    """k, how many of n entries are sent: ``density n`` rounded, 1 or more (of 0, 0)."""
    return min(n, max(1, round(density * n)))


def top_k(
    *, density: float = 0.01, values: Compressor | None = None, select: str = "exact"
) -> Compressor:
    """The k largest entries in absolute value, with their indices.

    For n entries v, with S the indices of the k largest::

        q_i = v_i for i in S, 0 elsewhere,   |v - q|^2 <= (1 - k/n) |v|^2

    k is ``density n`` rounded, and at least 1. Of equal entries the first ones are
    chosen. Infinities are the largest entries; NaN counts as less than zero, so that it
    is sent only where fewer than k numbers are left. With k = n this is the array.

    Args:
        density: k / n, above 0 and at most 1.
        values: A compressor for the k values, such as ``bf16()``; float32 otherwise.
        select: ``"exact"``, or ``"sampled"`` as in DGC: in arrays of more than 65,536
            entries the smallest value to send is estimated from as many of them. If
            fewer than k entries reach it they are all sent, and the first of the
            others fill up to k; if more do, the k largest are sent. Saves the passes
            that an exact choice needs where the sample is not like the rest.

    Returns:
        A compressor of ``4 k + index_bytes(k, n)`` bytes, or with ``values`` its bytes
        for k entries instead of 4 k; contracts if ``values`` does. Indices take::

            index_bytes = the least of ceil(k ceil(log2 n) / 8), ceil(n / 8) and, for
                any l, ceil(k l / 8) + ceil((k + floor((n - 1) / 2^l)) / 8)

        and nothing if k = n: see `parsgd.compressors.index_packing`.

    Raises:
        UserError: ``density`` outside (0, 1], unknown ``select``, or ``values`` that
            are no `Compressor`.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import top_k
        >>> compressor = top_k(density=0.5)
        >>> v = jnp.array([-5.0, 1.0, 2.0, -3.0])
        >>> compressor.decode(compressor.encode(v, None), v, None)
        Array([-5.,  0.,  0., -3.], dtype=float32)

    References:
        Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP
        2017. Stich et al., "Sparsified SGD with Memory", NeurIPS 2018,
        arXiv:1809.07599. Lin et al., "Deep Gradient Compression", ICLR 2018,
        arXiv:1712.01887 (the sampled choice).

    Differences from the papers:
        Aji and Heafield choose among the entries of all leaves; that is
        ``bucket=True`` of the reducer. DGC's sample is random, here one entry at
        random, but always the same one, of each of as many equal parts.
    """
    _check_density("density", density)
    check_choice("select", select, SELECTIONS)
    values = None if values is None else checked(values, "values")
    sampled = select == "sampled"

    def encode(x: jax.Array, key: Key = None) -> Sparse:
        v = flat32(x)
        index = largest(v, kept(density, v.size), sampled=sampled)
        chosen = v[index] if index.size < v.size else v
        # One column, so that a compressor with levels for each has one pair of them.
        sent = chosen if values is None else values.encode(chosen[:, None], key)
        return Sparse(sent, packed(index, v.size))

    def numbers(payload: Sparse, n: int, key: Key) -> jax.Array:
        if values is None:
            return payload.values
        spec = jax.ShapeDtypeStruct((kept(density, n), 1), jnp.float32)
        return values.decode(payload.values, spec, key)[:, 0]

    def decode(payload: Sparse, like: Any, key: Key = None) -> jax.Array:
        return scattered(numbers(payload, like.size, key), payload.indices, like)

    def add(total: jax.Array, payload: Sparse, key: Key = None) -> jax.Array:
        return added(total, numbers(payload, total.size, key), payload.indices)

    if values is None:
        return Compressor(encode, decode, "top_k", contracts=True, add=add)
    return Compressor(
        encode,
        decode,
        f"top_k of {values.name}",
        stochastic=values.stochastic,
        shared_key=values.shared_key,
        contracts=values.contracts,
        add=add,
        contracts_with=values.contracts_with,
    )


def random_k(*, density: float = 0.01, scaled: bool = False) -> Compressor:
    """The same k entries of every worker, drawn anew each time from a shared key.

    All entries are equally likely. Their indices follow from the key, which all
    workers have, so they are not sent, and payloads can be summed on the way::

        q_i = v_i for i in S, 0 elsewhere,   E |q - v|^2 = (1 - k/n) |v|^2
        or scaled (n / k) v_i: then E[q] = v and E |q - v|^2 = (n / k - 1) |v|^2

    Args:
        density: k / n, above 0 and at most 1; k is ``density n`` rounded, at least 1.
        scaled: Multiply by n / k, which makes the compressor unbiased, for use without
            error feedback: its error may be larger than what it encodes.

    Returns:
        A compressor of ``4 k`` bytes; contracts unless ``scaled``. With k = n it is the
        array.

    Raises:
        UserError: ``density`` outside (0, 1].
        ValueError: When used with k < n: no key.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from parsgd.compressors import random_k
        >>> compressor, v = random_k(density=0.5), jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> payload = compressor.encode(v, jax.random.key(0))
        >>> payload.values.shape
        (2,)
        >>> int(jnp.sum(compressor.decode(payload, v, jax.random.key(0)) == v))
        2

    References:
        Stich et al., "Sparsified SGD with Memory", NeurIPS 2018, arXiv:1809.07599.
        Wangni et al., "Gradient Sparsification for Communication-Efficient Distributed
        Optimization", NeurIPS 2018 (unbiased sparsification).

    Differences from the papers:
        All workers draw the same indices, so that payloads can be summed; Stich et al.
        analyse one worker. Wangni et al. choose entry i with a probability that grows
        with ``|v_i|``; here all are equally likely, and exactly k are chosen.
    """
    _check_density("density", density)

    def chosen(n, key):
        if key is None:
            raise ValueError("random_k draws its indices: give encode and decode a key")
        # The ranks of n random numbers are a random order.
        return largest(
            uniform_bits(key, (n,)), kept(density, n), order=lambda b: b >> 1
        )

    def encode(x: jax.Array, key: Key = None) -> RandomK:
        v = flat32(x)
        whole = kept(density, v.size) == v.size
        return RandomK(v if whole else v[chosen(v.size, key)])

    def decode(payload: RandomK, like: Any, key: Key = None) -> jax.Array:
        n, k = like.size, payload.values.size
        if k == n:
            return scattered(payload.values, None, like)
        sent = payload.values * (n / k) if scaled else payload.values
        return scatter(sent, chosen(n, key), like)

    return Compressor(
        encode,
        decode,
        "random_k scaled" if scaled else "random_k",
        stochastic=True,
        shared_key=True,
        sums=True,
        contracts=not scaled,
        contracts_with="scaled=False",
    )


def threshold(*, tau: float, max_density: float = 0.01) -> Compressor:
    """The entries of at least tau in absolute value, as far as there is room.

    For entries v::

        q_i = v_i where |v_i| >= tau, 0 elsewhere

    A compiled program sends arrays of a fixed size: room for k entries. If fewer reach
    tau the rest of the room holds zeros; if more do the k largest are sent, and error
    feedback keeps the others for later. NaN reaches tau, and ranks below every number.

    Args:
        tau: Smallest absolute value to send, 0 or more.
        max_density: k / n, above 0 and at most 1; k is rounded, and at least 1.

    Returns:
        A compressor of ``4 k + index_bytes(k, n)`` bytes; see `top_k`.

    Raises:
        UserError: ``tau`` negative or not finite; ``max_density`` outside (0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.compressors import threshold
        >>> compressor = threshold(tau=2.0, max_density=0.75)
        >>> v = jnp.array([-5.0, 1.0, 0.5, 2.0])
        >>> compressor.decode(compressor.encode(v, None), v, None)
        Array([-5.,  0.,  0.,  2.], dtype=float32)

    References:
        Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing",
        Interspeech 2015.

    Differences from the paper:
        Entries are sent as they are, where the paper sends tau with their sign, and at
        most k of them, where the paper has no limit.

    Note:
        The error has an absolute bound, not one in proportion to the array, which is
        enough for error feedback (`Compressor.contracts`).
    """
    if not (math.isfinite(tau) and tau >= 0):
        raise UserError(f"tau={tau}: a magnitude, so a finite number of 0 or more")
    _check_density("max_density", max_density)

    def encode(x: jax.Array, key: Key = None) -> Sparse:
        del key
        v = flat32(x)
        index = largest(v, kept(max_density, v.size))
        chosen = v[index]
        reach = ~(jnp.abs(chosen) < tau)  # NaN too
        return Sparse(jnp.where(reach, chosen, 0), packed(index, v.size))

    def decode(payload: Sparse, like: Any, key: Key = None) -> jax.Array:
        del key
        return scattered(payload.values, payload.indices, like)

    def add(total: jax.Array, payload: Sparse, key: Key = None) -> jax.Array:
        del key
        return added(total, payload.values, payload.indices)

    return Compressor(encode, decode, "threshold", contracts=True, add=add)


def _check_density(name: str, density: float) -> None:
    if not 0 < density <= 1:
        raise UserError(
            f"{name}={density}: the share of entries that is sent, above 0 and at most "
            "1 (0.01 for 1 %)"
        )
