"""DeMo: decoupled momentum. Workers send the fast components of their own momentum.

Peng, Quesnelle and Kingma, "DeMo: Decoupled Momentum Optimization", 2024.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from parsgd import comm
from parsgd.compressors.base import why_grows, why_small
from parsgd.compressors.index_packing import (
    index_bytes,
    pack_indices,
    unpack_indices,
)
from parsgd.errors import UserError, check_whole
from parsgd.reducers import paths


class DeMoState(NamedTuple):
    """State of `demo`.

    Attributes:
        momentum: m, each worker's own, ``float32``, by the leaf's path.
        step: Steps done, int32 scalar.
    """

    momentum: dict[str, jax.Array]
    step: jax.Array


def demo(
    *,
    learning_rate: float | Callable[[jax.Array], jax.Array] = 1.0,
    decay: float = 0.999,
    chunk: int = 64,
    k: int = 32,
    sign: bool = True,
) -> optax.GradientTransformation:
    """Send the largest DCT coefficients of each worker's own momentum.

    For each leaf with gradient g, rate lr and a momentum m that is each worker's own::

        m <- decay m + lr g
        c = DCT of m, chunk by chunk;   q = the k largest coefficients of each chunk
        m <- m - inverse DCT of q
        Q = mean of q, for each coefficient over the workers that sent it
        out = sign(inverse DCT of Q),   or without the sign

    A matrix is cut into blocks of at most chunk x chunk entries and gets the DCT along
    both axes; of k coefficients per block each goes as a value and an index.

    Put plain SGD after it. A leaf of n entries in B blocks sends K = B k coefficients,
    a gather of ``4 K + index_bytes(K, n)`` bytes (see `parsgd.compressors.top_k`). One-
    dimensional leaves, and those for which that is not smaller than the leaf, send all
    of their momentum in the leaf's type: ``out = sign(mean(m))``, and m becomes zero,
    or what rounding left of it.

    A gradient that is not finite makes the average of its leaf not finite, and leaves
    the momentum of that leaf as it was, on all workers.

    Args:
        learning_rate: Factor on the gradient inside the momentum: a number or an optax
            schedule. The paper's is that of the step, so that with ``sign=False`` no
            other rate is applied (``optax.sgd(1.0)`` after it). At a constant rate and
            with ``sign`` it has no effect. The default keeps m in units of the
            gradient.
        decay: Of the momentum, in [0, 1]; 0.999 in the paper.
        chunk: Largest side of a block, 1 or more; 64 in the paper. A side is cut into
            equal parts of the largest divisor that fits.
        k: Coefficients per block, 1 or more; 32 in the paper's main runs.
        sign: Take the sign of the result, as the paper's experiments do.

    Returns:
        An optax transformation with a `DeMoState`.

    Raises:
        UserError: ``chunk`` or ``k`` is not a whole number of 1 or more, or ``decay``
            outside [0, 1].
        ValueError: From ``update``: momentum that belongs to another model; names the
            leaf's path.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from parsgd.reducers import demo
        >>> optimizer = optax.chain(demo(k=8), optax.sgd(1e-3))
        >>> g = {"w": jnp.ones((128, 64))}
        >>> updates, _ = optimizer.update(g, optimizer.init(g))
        >>> float(updates["w"][0, 0])
        -0.0010000000474974513

    References:
        Peng, Quesnelle and Kingma, "DeMo: Decoupled Momentum Optimization",
        arXiv:2411.19870, 2024, and its published implementation for blocks, the mean
        over those that sent and the sign.

    Differences from the paper:
        Arrays of more than two axes are taken as matrices of their last axis; the
        published implementation cuts two-dimensional arrays in blocks and others along
        their last axis only. One-dimensional leaves are sent whole. Weight decay is
        left to the optimizer. The paper's m has the learning rate in it, here
        ``learning_rate``, a number: a schedule of the optimizer weighs what m has from
        earlier steps by today's rate.
    """
    if not 0 <= decay <= 1:
        raise UserError(f"demo: decay={decay} must be in [0, 1]")
    check_whole("chunk", chunk)
    check_whole("k", k)

    def init(params: Any) -> Any:
        leaves, _ = paths.split(params, lambda x: "")  # all have a momentum
        return DeMoState(paths.zeros(leaves), jnp.int32(0))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        rate = learning_rate(state.step) if callable(learning_rate) else learning_rate
        gradient, _ = paths.split(updates, lambda x: "")
        for path, x in jax.tree.leaves_with_path(updates):
            paths.note(path, x, _Chunks.of(x, chunk, k).why_raw)
        paths.check("momentum", state.momentum, gradient)
        m = {
            path: decay * state.momentum[path] + rate * g.astype(jnp.float32)
            for path, g in gradient.items()
        }
        types = {path: g.dtype for path, g in gradient.items()}
        mean, rest = _synchronise(m, types, chunk, k)
        out = {p: _sign(x) if sign else x for p, x in mean.items()}
        momentum = {
            path: jnp.where(paths.finite(mean[path]), rest[path], old)
            for path, old in state.momentum.items()
        }
        return paths.join(out, updates), DeMoState(momentum, state.step + 1)

    return optax.GradientTransformation(init, update)


def _sign(x: jax.Array) -> jax.Array:
    """An infinite average has a sign too, which is not to be applied."""
    return jnp.where(jnp.isfinite(x), jnp.sign(x), jnp.nan)


def _synchronise(
    m: paths.Arrays, types: Mapping[str, Any], chunk: int, k: int
) -> tuple[paths.Arrays, paths.Arrays]:
    """``(what arrives, what stays)`` of momenta, of leaves of these types."""
    like = {p: jax.ShapeDtypeStruct(x.shape, types[p]) for p, x in m.items()}
    chunks = {path: _Chunks.of(x, chunk, k) for path, x in like.items()}
    dense = {p: m[p].astype(types[p]) for p in m if chunks[p].why_raw}
    payload, rest = {}, {p: m[p] - x.astype(jnp.float32) for p, x in dense.items()}
    for path in sorted({*m} - {*dense}):
        payload[path], own = chunks[path].encode(m[path])
        rest[path] = m[path] - own
    mean = comm.mean(dense)
    for path, payloads in comm.gather(payload).items():
        mean[path] = chunks[path].mean(payloads)
    return mean, rest


class _Chunks(NamedTuple):
    """A matrix cut into blocks, of each of which the k largest frequencies are sent.

    Attributes:
        shape: Of the array.
        rows: Rows of a block.
        columns: Columns of a block.
        k: Frequencies of a block.
        dtype: Of the leaf.
    """

    shape: tuple[int, ...]
    rows: int
    columns: int
    k: int
    dtype: Any

    @classmethod
    def of(cls, m: Any, chunk: int, k: int) -> "_Chunks":
        """Blocks of at most ``chunk`` rows and columns, of a leaf like ``m``."""
        width = m.shape[-1] if m.ndim > 1 else 1
        height = m.size // width if width else 0
        rows, columns = _side(height, chunk), _side(width, chunk)
        return cls(m.shape, rows, columns, min(k, rows * columns), m.dtype)

    @property
    def size(self) -> int:
        """Entries of the array."""
        return math.prod(self.shape)

    @property
    def blocks(self) -> int:
        """How many."""
        return self.size // (self.rows * self.columns)

    @property
    def why_raw(self) -> str:
        """Why the array is not sent as frequencies; empty if it is."""
        sent = self.blocks * self.k
        sent_bytes = 4 * sent + index_bytes(sent, self.size)
        return why_small(self) or why_grows(self, sent_bytes)

    def encode(self, m: jax.Array) -> tuple[Any, jax.Array]:
        """``(payload, what it stands for)``."""
        along_rows, along_columns = _dct(self.rows), _dct(self.columns)
        blocks = m.reshape(self._grid)
        c = _einsum("yhxw,kh,lw->yxkl", blocks, along_rows, along_columns)
        c = c.reshape(self.blocks, self.rows * self.columns)
        _, best = jax.lax.top_k(jnp.abs(c), self.k)
        # All blocks' indices as one ascending list.
        first = c.shape[1] * jnp.arange(self.blocks, dtype=jnp.int32)
        where = (jnp.sort(best, axis=1) + first[:, None]).reshape(-1)
        values = c.reshape(-1)[where]
        own = jnp.zeros(self.size, c.dtype).at[where].set(values, unique_indices=True)
        return (values, pack_indices(where, self.size)), self._restored(own)

    def mean(self, payloads: Any) -> jax.Array:
        """Each frequency's average over those who sent it."""

        def add(total, one):
            values, packed = one
            at = unpack_indices(packed, len(values), self.size)
            sums, senders = total
            sums = sums.at[at].add(values, unique_indices=True)
            return (sums, senders.at[at].add(1.0, unique_indices=True)), None

        # One worker after the other, so that all add in the same order.
        zero = (jnp.zeros(self.size, jnp.float32),) * 2
        (sums, senders), _ = jax.lax.scan(add, zero, payloads)
        return self._restored(sums / jnp.maximum(senders, 1.0))

    @property
    def _grid(self) -> tuple[int, ...]:
        """Blocks down, side, blocks across, side."""
        height, width = self.size // self.shape[-1], self.shape[-1]
        return height // self.rows, self.rows, width // self.columns, self.columns

    def _restored(self, c: jax.Array) -> jax.Array:
        down, rows, across, columns = self._grid
        c = c.reshape(down, across, rows, columns)
        m = _einsum("yxkl,kh,lw->yhxw", c, _dct(rows), _dct(columns))
        return m.reshape(self.shape)


_einsum = functools.partial(
    jnp.einsum, precision=jax.lax.Precision.HIGHEST, optimize=True
)


def _side(size: int, limit: int) -> int:
    """The largest divisor of a side that is at most ``limit``."""
    return next((d for d in range(min(size, limit), 0, -1) if size % d == 0), 1)


@functools.cache
def _dct(n: int) -> np.ndarray:
    """Orthonormal DCT-II, ``[frequency, position]``."""
    frequency, position = np.arange(n)[:, None], np.arange(n)[None]
    matrix = np.cos(math.pi * (position + 0.5) * frequency / n) * math.sqrt(2 / n)
    matrix[0] = math.sqrt(1 / n)
    return matrix.astype(np.float32)
