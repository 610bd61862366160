"""Deep Gradient Compression in full: its reducer and the sparsity warm-up."""

from collections.abc import Sequence
from typing import Any

import optax

from parsgd.core import Algorithm, Phase, Strategy
from parsgd.errors import UserError, check_whole
from parsgd.reducers import dgc
from parsgd.reducers.momentum import has_momentum
from parsgd.strategies.data_parallel import data_parallel

WARMUP = (0.25, 0.0625, 0.015625, 0.004)


def dgc_sgd(
    optimizer: optax.GradientTransformation,
    *,
    density: float = 0.001,
    momentum: float = 0.9,
    nesterov: bool = False,
    momentum_masking: bool = True,
    clip_norm: float | None = None,
    min_size: int = 0,
    select: str = "exact",
    warmup_steps: int = 0,
    warmup_densities: Sequence[float] = WARMUP,
) -> Algorithm:
    """Deep Gradient Compression: sparse gradients, and momentum before they are sent.

    Per step and weight array, with gradient g, velocity u and accumulated velocity v::

        u <- m u + g,   v <- v + u
        q = the largest entries of v, a share ``density`` of them, the others zero
        v <- v - q,   u <- 0 where q is sent,   optimizer on mean(q)

    That is `parsgd.reducers.dgc` and the optimizer, in phases of falling density (the
    sparsity warm-up) that share one state.

    Args:
        optimizer: Plain SGD, perhaps with weight decay: momentum is in the method.
        density: Share of each weight array that is sent after the warm-up, in (0, 1];
            0.001 in the paper.
        momentum: m in [0, 1).
        nesterov: See `parsgd.reducers.dgc`, as for the four that follow.
        momentum_masking: Whether the velocity of what is sent becomes zero.
        clip_norm: Norm to which the whole gradient is clipped, above 0: the paper's
            local clipping. None for no clipping.
        min_size: Leaves of fewer elements are averaged; 0 or more.
        select: ``"exact"``, or ``"sampled"`` as in the paper.
        warmup_steps: Steps until ``density`` is reached, 0 or more; the paper takes 4
            epochs.
        warmup_densities: Densities of equal parts of the warm-up, each in (0, 1]. The
            default is the paper's: 25 % in the first epoch, then in each epoch a
            quarter of the one before. Parts shorter than a step are left out.

    Returns:
        A phase for each density; the last one runs to the end.

    Raises:
        UserError: ``optimizer`` is not an optax transformation, ``warmup_steps`` is not
            a whole number of 0 or more, another argument out of range, or unknown
            ``select``; or, from ``init``, an optimizer with momentum of its own unless
            ``momentum`` is 0.
        ValueError: In a step, a state that belongs to another model.

    Example:
        >>> import optax
        >>> from parsgd.strategies import dgc_sgd
        >>> phases = dgc_sgd(optax.sgd(0.1), warmup_steps=80)
        >>> [phase.start for phase in phases]
        [0, 20, 40, 60, 80]

    References:
        Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for
        Distributed Training", ICLR 2018, https://arxiv.org/abs/1712.01887.

    Differences from the paper:
        Those of `parsgd.reducers.dgc`. There is no warm-up unless ``warmup_steps`` is
        set, and its parts are of steps, not of epochs.
    """
    check_whole("warmup_steps", warmup_steps, 0)
    if warmup_steps and not warmup_densities:
        raise UserError(
            f"dgc_sgd: warmup_steps={warmup_steps} with no warmup_densities: give the "
            "densities of its parts, or leave warmup_steps out"
        )

    def at(share: float) -> Strategy:
        reducer = dgc(
            density=share,
            momentum=momentum,
            nesterov=nesterov,
            momentum_masking=momentum_masking,
            clip_norm=clip_norm,
            min_size=min_size,
            select=select,
        )
        strategy = data_parallel(optimizer, reducer=reducer)

        def init(params: Any) -> Any:
            state = strategy.init(params)
            if momentum and has_momentum(state[1:]):
                raise UserError(
                    "dgc_sgd with an optimizer that has momentum: the method applies "
                    f"momentum={momentum} itself, before it sparsifies; use plain SGD, "
                    "whose momentum is None (0 keeps a velocity too)"
                )
            return state

        return strategy._replace(init=init)

    parts = len(warmup_densities)
    starts = {warmup_steps * i // parts: d for i, d in enumerate(warmup_densities)}
    starts = {s: d for s, d in starts.items() if s < warmup_steps}
    starts[warmup_steps] = density
    return tuple(Phase(start, at(share)) for start, share in sorted(starts.items()))
