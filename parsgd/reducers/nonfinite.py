"""Steps with a gradient that is not finite are skipped, by all workers together."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from parsgd import comm
from parsgd.errors import check_transformation
from parsgd.reducers import paths


class SkipState(NamedTuple):
    """State of `skip_nonfinite`.

    Attributes:
        inner: State of what is wrapped.
        skipped: Steps that all workers skipped, int32 scalar.
        own: Steps in which this worker's own gradient was not finite, int32 scalar:
            tells which worker is at fault.
        overflowed: Of the skipped steps those in which all gradients were finite, and
            what became of them was not, int32 scalar.
    """

    inner: Any
    skipped: jax.Array
    own: jax.Array
    overflowed: jax.Array


def skips_steps(state: Any) -> bool:
    """Whether a transformation with such a state has a `skip_nonfinite` in it."""

    def counts(node: Any) -> bool:
        return isinstance(node, SkipState)

    return any(counts(node) for node in jax.tree.leaves(state, is_leaf=counts))


def skip_nonfinite(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Skip a step if any worker's gradient or update has a NaN or an infinity.

    With a gradient g and the update u that ``inner`` makes of it::

        good = g and u are finite on all workers
        u <- u if good else 0,   inner's state <- new if good else old

    In a skipped step all workers get zero updates and keep ``inner``'s state, momentum
    and residuals included, whichever was at fault. They agree by one all-reduce of 4
    bytes. An update is not finite where gradients are but their sum, or what a
    compressor has room for, is not. Wrap the whole chain, reducer first::

        skip_nonfinite(optax.chain(error_feedback(one_bit()), optax.sgd(0.1, 0.9)))

    ``inner`` runs in any case and its result is dropped: a branch around collectives
    would hang workers that take the other one. `parsgd.fit` names the workers at fault
    after each evaluation.

    Args:
        inner: Any optax transformation; sees each worker's own gradient.

    Returns:
        An optax transformation with a `SkipState`. It hands extra arguments on.

    Raises:
        UserError: ``inner`` is not an optax transformation.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from parsgd.reducers import skip_nonfinite
        >>> safe = skip_nonfinite(optax.sgd(0.1, 0.9))
        >>> state = safe.init(jnp.zeros(2))
        >>> out, state = safe.update(jnp.array([1.0, jnp.nan]), state)
        >>> out, int(state.skipped)
        (Array([0., 0.], dtype=float32), 1)
    """
    check_transformation("inner", inner)
    whole = optax.with_extra_args_support(inner)

    def init(params: Any) -> Any:
        return SkipState(inner.init(params), *(jnp.int32(0) for _ in range(3)))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        out, new = whole.update(updates, state.inner, params, **extra)
        bad = jnp.int32(~paths.finite(*jax.tree.leaves(updates)))
        unusable = jnp.int32(~paths.finite(*jax.tree.leaves(out)))
        # More than W in all if a gradient is at fault.
        votes = comm.total(jnp.where(bad, comm.world() + 1, unusable))
        good = votes == 0
        overflowed = ~good & (votes <= comm.world())
        out = jax.tree.map(lambda u: jnp.where(good, u, jnp.zeros_like(u)), out)
        kept = optax.tree.where(good, new, state.inner)
        return out, SkipState(
            kept,
            state.skipped + jnp.int32(~good),
            state.own + bad,
            state.overflowed + jnp.int32(overflowed),
        )

    return optax.GradientTransformationExtraArgs(init, update)
