"""PowerSGD: gradients as products of two thin matrices, found by power iteration.

Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", NeurIPS 2019.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.compressors.base import why_grows, why_small
from parsgd.errors import UserError, check_whole
from parsgd.reducers import paths


class PowerSGDState(NamedTuple):
    """State of `power_sgd`, by path of the leaves that are compressed.

    Attributes:
        error: e, each worker's own, ``float32``, in the leaf's shape; empty without
            feedback.
        q: ``float32 [n, r]``, equal on all workers; empty without a warm start.
        step: Steps done, int32 scalar.
    """

    error: dict[str, jax.Array]
    q: dict[str, jax.Array]
    step: jax.Array


def power_sgd(
    rank: int = 2,
    *,
    warm_start: bool = True,
    iterations: int = 1,
    min_compression: float = 1.0,
    feedback: bool = True,
    seed: int = 0,
) -> optax.GradientTransformation:
    """Average gradients in rank r, with error feedback.

    For each weight array as a matrix ``[m, n]`` (n is the last axis), with gradient g,
    the worker's residual e and the last step's Q ``[n, r]``::

        M = g + e
        P = orthonormal(mean(M Q))     [m, r], an all-reduce
        Q = mean(M^T P)                [n, r], an all-reduce
        out = P Q^T,   e <- M - out

    M Q and M^T P are linear in M, so their averages are those of the average gradient:
    the workers never gather, and the bytes do not grow with their number.

    A leaf of m n elements costs two all-reduces of ``4 r (m + n)`` bytes together,
    times ``iterations``. One-dimensional leaves, and those for which that saves too
    little, are averaged as they are: so are all whose rank cannot exceed r. Put the
    momentum after it: ``optax.chain(power_sgd(), optax.sgd(0.1, 0.9))``.

    A gradient that is not finite leaves residual and Q as they were.

    Args:
        rank: r >= 1; 1, 2 and 4 in the paper.
        warm_start: Start each step from the Q of the last; else from a new random one.
        iterations: Power iterations per step, 1 or more; the paper's warm start makes
            one enough.
        min_compression: Compress a leaf only if its bytes are more than so many times
            ``4 r (m + n)``, those of P and Q; 1 or more.
        feedback: Keep what was not sent and add it to the next gradient.
        seed: Of Q, the same on all workers.

    Returns:
        An optax transformation with a `PowerSGDState`.

    Raises:
        UserError: ``rank`` or ``iterations`` is not a whole number of 1 or more, or
            ``min_compression`` below 1.
        ValueError: From ``update``: a residual or Q that belongs to another model;
            names the leaf's path.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.reducers import power_sgd
        >>> reducer = power_sgd(rank=1)
        >>> g = {"w": jnp.outer(jnp.arange(4.0), jnp.arange(5.0)), "b": jnp.ones(5)}
        >>> out, _ = reducer.update(g, reducer.init(g))
        >>> bool(jnp.allclose(out["w"], g["w"], atol=1e-5))
        True

    References:
        Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient
        Compression for Distributed Optimization", NeurIPS 2019, arXiv:1905.13727.

    Differences from the paper:
        The paper's matrix has output units as rows, here they are the columns, as in a
        JAX weight array; P and Q change sides. P is the Q of a QR decomposition, in
        place of Gram-Schmidt, which has no answer for columns of zeros. Columns of Q
        are scaled by their largest entry before they are used again, which changes no
        result (P is orthonormal in any case) and keeps products of small gradients from
        underflow. A column that comes out as zero keeps its last value: after a step of
        zero gradients the paper's Q is zero, and may stay so for good.
    """
    check_whole("rank", rank)
    check_whole("iterations", iterations)
    if not min_compression >= 1:
        raise UserError(f"min_compression={min_compression}: must be 1 or more")

    def why_raw(x) -> str:
        if small := why_small(x):
            return small
        # P and Q are float32, whatever the leaf is.
        size, sent = x.size * x.dtype.itemsize, 4 * rank * sum(_matrix_shape(x))
        little = size <= min_compression * sent
        return (
            why_grows(x, sent)
            or f"not smaller by min_compression={min_compression:g}" * little
            or f"of a rank of {rank} at most" * (rank >= min(_matrix_shape(x)))
        )

    def random_q(x, step, number) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), number)
        return jax.random.normal(key, (_matrix_shape(x)[1], rank), jnp.float32)

    def first_q(leaves: paths.Arrays) -> paths.Arrays:
        return {p: random_q(x, 0, i) for i, (p, x) in enumerate(sorted(leaves.items()))}

    def init(params: Any) -> Any:
        leaves, _ = paths.split(params, why_raw)
        error = paths.zeros(leaves) if feedback else {}
        q = first_q(leaves) if warm_start else {}
        return PowerSGDState(error, q, jnp.int32(0))

    def update(
        updates: Any, state: Any, params: Any = None, *, dense: bool = False, **_: Any
    ) -> Any:
        del params
        if dense:
            return comm.mean(updates), state
        gradient, raw = paths.split(updates, why_raw)
        if feedback:
            paths.check("residual", state.error, gradient)
        if warm_start:
            paths.check("Q", state.q, jax.eval_shape(first_q, gradient))
        error = state.error if feedback else dict.fromkeys(gradient, 0.0)
        m = {p: g.astype(jnp.float32) + error[p] for p, g in gradient.items()}
        start = {
            p: state.q[p] if warm_start else random_q(m[p], state.step, i)
            for i, p in enumerate(sorted(gradient))
        }
        product, q, raw = _approximate(m, start, raw, iterations)
        # In the gradient's own type, so that the residual holds its rounding too.
        out = {p: product[p].astype(g.dtype) for p, g in gradient.items()}
        good = {p: paths.finite(product[p], out[p]) for p in gradient}
        kept_error, kept_q = {}, {}
        if feedback:
            for p, x in m.items():
                rest = x - out[p].astype(jnp.float32)
                kept_error[p] = jnp.where(good[p], rest, error[p])
        if warm_start:
            kept_q = {p: jnp.where(good[p], q[p], start[p]) for p in gradient}
        state = PowerSGDState(kept_error, kept_q, state.step + 1)
        return paths.join(out | raw, updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def _matrix_shape(x: Any) -> tuple[int, int]:
    n = x.shape[-1]
    return (x.size // n if n else 0, n)


def _approximate(
    arrays: paths.Arrays, start: paths.Arrays, raw: paths.Arrays, iterations: int
) -> tuple[paths.Arrays, paths.Arrays, paths.Arrays]:
    """Algorithm 1 of Vogels et al. for all arrays together, since messages cost time.

    Args:
        arrays: Gradients with residuals, by path; as matrices they are M.
        start: Q to start from.
        raw: What is averaged as it is, in the message of the first P.
        iterations: Power iterations.

    Returns:
        ``P Q^T`` in the arrays' shapes, Q for the next step, and the means of ``raw``.
    """
    matmul = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    M = {path: x.reshape(_matrix_shape(x)) for path, x in arrays.items()}
    P, Q, unit_Q = {}, {}, dict(start)
    for number in range(iterations):
        MQ = {path: matmul(M[path], unit_Q[path]) for path in M}
        MQ, raw = comm.mean((MQ, raw)) if number == 0 else (comm.mean(MQ), raw)
        # QR and not Gram-Schmidt: it is orthonormal also for columns that are zero.
        P = {path: jnp.linalg.qr(x)[0] for path, x in MQ.items()}
        Q = comm.mean({path: matmul(M[path].T, P[path]) for path in M})
        unit_Q = {path: _scaled(Q[path], unit_Q[path]) for path in M}
    out = {p: matmul(P[p], Q[p].T).reshape(x.shape) for p, x in arrays.items()}
    return out, unit_Q, raw


def _scaled(Q: jax.Array, last: jax.Array) -> jax.Array:
    """Columns by their largest entry; a column of zeros as it was in the last Q."""
    largest = jnp.max(jnp.abs(Q), axis=0, keepdims=True)
    return jnp.where(largest > 0, Q / jnp.where(largest > 0, largest, 1.0), last)
