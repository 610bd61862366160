"""Deep Gradient Compression: top-k with the momentum kept on the worker's side.

Lin, Han, Mao, Wang and Dally, "Deep Gradient Compression: Reducing the Communication
Bandwidth for Distributed Training", ICLR 2018.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.compressors import payload_bytes, top_k
from parsgd.compressors.base import why_grows, why_small
from parsgd.errors import UserError, check_whole
from parsgd.reducers import paths
from parsgd.reducers.clip import clipped
from parsgd.reducers.exchange import Exchange


class DGCState(NamedTuple):
    """State of `dgc`, ``float32``, by the leaf's path.

    Attributes:
        velocity: u, of every leaf; equal on all workers for leaves that are averaged.
        accumulated: v, each worker's own, of the leaves that are compressed.
    """

    velocity: dict[str, jax.Array]
    accumulated: dict[str, jax.Array]


def dgc(
    *,
    density: float = 0.001,
    momentum: float = 0.9,
    nesterov: bool = False,
    momentum_masking: bool = True,
    clip_norm: float | None = None,
    min_size: int = 0,
    select: str = "exact",
) -> optax.GradientTransformation:
    """Sparse gradients with momentum correction, and memory of what was not sent.

    For each weight array with gradient g, velocity u, accumulated velocity v and
    momentum m::

        g <- g min(1, clip / (sqrt(W) norm(g)))     local clipping, of the whole
                                                    gradient
        u <- m u + g                                momentum correction
        v <- v + u
        q = the k entries of v that are largest in magnitude, the others zero
        v <- v - q,   u <- 0 where q is sent        momentum factor masking
        out = mean(q)

    What is sent late has then the size that momentum would have given it, so plain SGD
    takes ``out``.

    A weight array of n entries costs a gather of `parsgd.compressors.top_k`'s payload,
    ``4 k + index_bytes(k, n)`` bytes for ``k = max(1, round(density n))``; where that
    is not smaller than the array, v is averaged whole. One-dimensional leaves are
    averaged and get ordinary momentum, ``u <- m u + mean(g)``. Put plain SGD after it:
    momentum is in here already.

    With ``density=1`` weight arrays see plain SGD if momentum is masked, momentum SGD
    if not.

    A gradient that is not finite makes the average of its leaf not finite, and leaves u
    and v of that leaf as they were, on all workers; with ``clip_norm`` of all leaves,
    since the norm is that of the whole gradient.

    Args:
        density: Share of the entries that is sent, in (0, 1]; 0.001 in the paper after
            a warm-up: see `parsgd.strategies.dgc_sgd`.
        momentum: m in [0, 1).
        nesterov: Add ``m u + g`` to v in place of u.
        momentum_masking: Zero the velocity of what is sent, so that it does not go on
            in a stale direction.
        clip_norm: Norm that the whole gradient of all workers would be clipped to,
            above 0; each worker clips its own to this over sqrt(W). None for no
            clipping.
        min_size: Leaves of fewer elements are averaged, like one-dimensional ones; 0 or
            more.
        select: ``"exact"``, or ``"sampled"`` as in the paper: see
            `parsgd.compressors.top_k`. As many entries are sent either way.

    Returns:
        An optax transformation with a `DGCState`.

    Raises:
        UserError: An argument out of range, or unknown ``select``.
        ValueError: From ``update``: a state that belongs to another model; names the
            leaf's path.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd.reducers import dgc
        >>> reducer = dgc(density=0.25, momentum=0.0)
        >>> g = jnp.array([[1.0, -5.0], [2.0, 3.0]])
        >>> out, state = reducer.update({"w": g}, reducer.init({"w": g}))
        >>> out["w"]
        Array([[ 0., -5.],
               [ 0.,  0.]], dtype=float32)

    References:
        Lin, Han, Mao, Wang and Dally, "Deep Gradient Compression: Reducing the
        Communication Bandwidth for Distributed Training", ICLR 2018, arXiv:1712.01887.

    Differences from the paper:
        The k-th largest magnitude is exact unless ``select="sampled"``, where the paper
        estimates it on a sample.
        One-dimensional leaves (biases) are averaged with ordinary momentum.
        Entries of v that are zero are never masked, even if they are among the k.
    """
    if not 0 < density <= 1:
        raise UserError(f"dgc: density={density} must be above 0 and at most 1")
    if not 0 <= momentum < 1:
        raise UserError(f"dgc: momentum={momentum} must be in [0, 1)")
    if clip_norm is not None and not clip_norm > 0:
        raise UserError(f"dgc: clip_norm={clip_norm} must be positive, or None")
    check_whole("min_size", min_size, 0)

    channel = Exchange(top_k(density=density, select=select))

    def why_raw(x) -> str:
        return why_small(x, min_size) or "empty" * (x.size == 0)

    def why_whole(x) -> str:
        return why_grows(x, payload_bytes(channel.compressor, x))

    def init(params: Any) -> Any:
        arrays, others = paths.split(params, why_raw)
        return DGCState(paths.zeros(arrays | others), paths.zeros(arrays))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        own = updates
        if clip_norm is not None:
            own = clipped(updates, clip_norm / math.sqrt(comm.world()))
        gradient, others = paths.split(own, why_raw)
        paths.check("velocity", state.velocity, gradient | others)
        for path, x in jax.tree.leaves_with_path(updates):
            paths.note(path, x, why_raw(x) or why_whole(x))
        out, velocity, accumulated = {}, {}, {}
        for path, g in comm.mean(others).items():
            out[path], u = _momentum(g, state.velocity[path], momentum, nesterov)
            velocity[path] = jnp.where(paths.finite(u), u, state.velocity[path])
        for path, g in gradient.items():
            step, u = _momentum(g, state.velocity[path], momentum, nesterov)
            velocity[path], accumulated[path] = u, state.accumulated[path] + step
        whole = {
            path: accumulated[path].astype(g.dtype)
            for path, g in gradient.items()
            if why_whole(g)
        }
        mean, sent = _sparse_mean(accumulated, whole, channel)
        for path, g in gradient.items():
            u, v = velocity[path], accumulated[path]
            left, lost = _rounded_off(v, whole.get(path), mean[path], g.dtype)
            v = jnp.where(sent[path], left, v) + lost
            u = jnp.where(sent[path], 0.0, u) if momentum_masking else u
            # The average is equal on all workers, so they agree on whether to go on.
            velocity[path], accumulated[path] = optax.tree.where(
                paths.finite(mean[path]),
                (u, v),
                (state.velocity[path], state.accumulated[path]),
            )
        return paths.join(out | mean, updates), DGCState(velocity, accumulated)

    return optax.GradientTransformation(init, update)


def _momentum(g: jax.Array, u: jax.Array, m: float, nesterov: bool) -> tuple:
    """``(step, new velocity)``."""
    g = g.astype(jnp.float32)
    u = m * u + g
    return (m * u + g if nesterov else u), u


def _sparse_mean(
    accumulated: paths.Arrays, whole: paths.Arrays, channel: Exchange
) -> tuple[dict, dict]:
    """Mean of what the workers send, and where this one sent something.

    Args:
        accumulated: v, by path; its largest entries are sent.
        whole: Those that are sent whole instead, in the leaf's type.
        channel: Chooses and averages entries.
    """
    sparse = {p: v for p, v in accumulated.items() if p not in whole}
    # Its state is for compressors that draw numbers and for the two-sided form: this
    # one has none worth keeping, and what is not sent stays in v.
    mean, sent, _, _ = channel.average(sparse, channel.init({}))
    return mean | comm.mean(whole), {p: x != 0 for p, x in (sent | whole).items()}


def _rounded_off(
    v: jax.Array, whole: jax.Array | None, mean: jax.Array, dtype: Any
) -> tuple:
    """What rounding to the leaf's type loses: ``(left, lost)``, which stay in v.

    ``left`` is this worker's own, of what it sends whole; ``lost`` is the same on all
    workers, of a sparse average.
    """
    if whole is not None:
        return v - whole.astype(jnp.float32), 0.0
    if dtype.itemsize >= 4:
        return 0.0, 0.0
    lost = mean - mean.astype(dtype).astype(jnp.float32)
    return 0.0, jnp.where(jnp.isfinite(lost), lost, 0.0)
