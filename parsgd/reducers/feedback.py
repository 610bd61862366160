"""Error feedback: what compression drops is added to the next gradient.

Seide et al. 2014; Stich et al., "Sparsified SGD with Memory", NeurIPS 2018;
Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019; Richtarik et al., "EF21", NeurIPS 2021.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.compressors import Compressor
from parsgd.reducers.exchange import Exchange, ExchangeState, exchange


class FeedbackState(NamedTuple):
    """State of `error_feedback`.

    Attributes:
        error: What has not been sent yet, ``float32``, for each leaf that is
            compressed, by the leaf's path.
        exchange: State of the exchange.
    """

    error: dict[str, jax.Array]
    exchange: ExchangeState


class EF21State(NamedTuple):
    """State of `ef21`.

    Attributes:
        estimate: h, what the others know of this worker's gradient, ``float32``, by
            path.
        mean: The workers' average of h, equal on all.
        exchange: State of the exchange.
    """

    estimate: dict[str, jax.Array]
    mean: dict[str, jax.Array]
    exchange: ExchangeState


def error_feedback(
    compressor: Compressor,
    *,
    two_sided: bool = False,
    bucket: bool = False,
    min_size: int = 0,
    seed: int = 0,
) -> optax.GradientTransformation:
    """Average compressed gradients; keep what each worker could not send.

    For each leaf with gradient g and residual e::

        v = g + e,   q = decode(encode(v)),   e <- v - q,   g <- mean(q)

    so ``q + e_new = g + e_old`` to rounding, and the average has the same bits on every
    worker. A gradient that is not finite leaves the residual as it was. After an
    optimizer (``chain(optax.sgd(lr), error_feedback(...))``) the residual is in units
    of the step, as in EF-signSGD; before one, in units of the gradient.

    Args:
        compressor: The code; must shrink its error (`Compressor.contracts`).
        two_sided: See `compressed_all_reduce`, as all that follow.
        bucket: One message for all leaves.
        min_size: Leaves of fewer elements are averaged as they are.
        seed: Of a stochastic code.

    Raises:
        ValueError: A code that does not shrink its error; or, from ``update``, a
            residual whose leaves are not those of the gradient, as after the model was
            renamed or reshaped; names the path.
    """
    channel = _channel(
        "error_feedback",
        exchange(
            compressor, two_sided=two_sided, bucket=bucket, min_size=min_size, seed=seed
        ),
    )

    def init(params) -> Any:
        return FeedbackState(channel.zeros(params), channel.init(params))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        gradient, raw = channel.split(updates)
        _check(gradient, state.error)
        total = {path: g + state.error[path] for path, g in gradient.items()}
        mean, sent, inner = channel.average(total, state.exchange)
        error = {
            path: _if_finite(v - sent[path], state.error[path])
            for path, v in total.items()
        }
        reduced = channel.join(mean, comm.mean(raw), updates)
        return reduced, FeedbackState(error, inner)

    return optax.GradientTransformation(init, update)


def ef21(
    compressor: Compressor,
    *,
    bucket: bool = False,
    min_size: int = 0,
    seed: int = 0,
) -> optax.GradientTransformation:
    """EF21: send the compressed change of the gradient, and use the estimate.

    For each leaf with gradient g and estimate h (zero at first)::

        c = decode(encode(g - h)),   h <- h + c,   g <- mean(h)

    Args:
        compressor: The code; must shrink its error (`Compressor.contracts`).
        bucket: See `compressed_all_reduce`, as all that follow.
        min_size: Leaves of fewer elements are averaged as they are.
        seed: Of a stochastic code.

    Raises:
        ValueError: As `error_feedback`.

    Differences from the paper:
        The paper's h starts as the full first gradient, here as zero.
    """
    channel = _channel(
        "ef21", exchange(compressor, bucket=bucket, min_size=min_size, seed=seed)
    )

    def init(params) -> Any:
        zeros = channel.zeros(params)
        return EF21State(zeros, channel.zeros(params), channel.init(params))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        gradient, raw = channel.split(updates)
        _check(gradient, state.estimate)
        change = {path: g - state.estimate[path] for path, g in gradient.items()}
        mean, sent, inner = channel.average(change, state.exchange)
        # The estimates' average needs no message: it moves by the average change.
        moved = {path: h + mean[path] for path, h in state.mean.items()}
        # Equal on all workers: where one could not move, none does.
        fine = {path: jnp.all(jnp.isfinite(h)) for path, h in moved.items()}
        kept = {p: jnp.where(fine[p], moved[p], h) for p, h in state.mean.items()}
        estimate = {
            path: jnp.where(fine[path], h + sent[path], h)
            for path, h in state.estimate.items()
        }
        reduced = channel.join(moved, comm.mean(raw), updates)
        return reduced, EF21State(estimate, kept, inner)

    return optax.GradientTransformation(init, update)


def _channel(name: str, channel: Exchange) -> Exchange:
    code = channel.compressor
    if not code.contracts:
        raise ValueError(
            f"{name} with {code.name}: the error of this code may be larger than what "
            "it encodes, and feedback would let it grow without bound; use "
            "compressed_all_reduce (feedback=none), or a code that shrinks its error, "
            "such as one_bit, scaled_sign or top_k"
        )
    return channel


def _check(arrays: dict[str, jax.Array], kept: dict[str, jax.Array]) -> None:
    """Refuse a residual that is not this model's."""
    for path, x in arrays.items():
        if path not in kept or kept[path].shape != x.shape:
            raise ValueError(
                f"no residual of shape {x.shape} for {path}: the state belongs to "
                f"another model (it has {sorted(kept)}); initialise it anew"
            )


def _if_finite(new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(jnp.all(jnp.isfinite(new)), new, old)
