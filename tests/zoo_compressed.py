"""Rows of the zoo for compressed methods: their codes, bytes and oracles."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import reducer_oracles
from byte_counts import (
    all_reduced,
    demo_payload,
    fifth_reduced,
    gathered,
    pairwise,
    sparse,
    thin,
)
from compressed_oracles import (
    adasum,
    coded,
    delayed,
    exchange_key,
    linear_8bit,
    mean,
    momentum_of_mean,
    natural,
    one_bit_leaf,
    outer_loop,
    qsgd,
    random_fifth,
    reduced_steps,
    scaled_sign,
    sgd,
    terngrad,
    vectors_with_momentum,
)

import parsgd
from parsgd import compressors, reducers, strategies

RATE = 0.05  # of those that do not take the optimizer
MOMENTS = {"b1": 0.8, "b2": 0.9, "eps": 1e-6}
INTERVALS = {"kappa": 4, "freeze_step": 4, "double_steps": 1, "max_interval": 1}
LOOSE = {"identical": True, "plain": False}
GATHERED = {"exchange": reducer_oracles.OneBitGather}
RANDOM = {**LOOSE, "per_worker": True}  # each worker draws its own numbers


def matrices(reducer: Callable, vectors: Callable = mean) -> Callable:
    """``leaf(number, grads)`` of the oracles, from one for matrices and for vectors."""
    return lambda number, grads: (
        vectors(grads) if number is None else reducer(number, grads)
    )


def code(fn: Callable, **options: Any) -> Callable:
    """Matrices through a code ``fn(number, v, t, w)``."""
    return matrices(
        lambda number, grads: coded(grads, functools.partial(fn, number), **options)
    )


def plain_code(fn: Callable, **options: Any) -> Callable:
    """Matrices through a code ``fn(v)`` that draws nothing."""
    return matrices(lambda number, grads: coded(grads, fn, **options))


def _power(number, grads):
    q = jax.random.normal(exchange_key(0, number, None), (grads.shape[-1], 2))
    return reducer_oracles.power_sgd(grads, np.asarray(q, np.float64))


def _demo(number, grads):
    rows, columns = int(np.prod(grads.shape[2:-1])), grads.shape[-1]
    side = [max(d for d in range(1, 5) if n % d == 0) for n in (rows, columns)]
    return reducer_oracles.demo(grads, lr=1.0, decay=0.9, side=side, k=2, sign=False)


def _dgc(density):
    return matrices(
        lambda number, grads: reducer_oracles.dgc(grads, density=density, momentum=0.9),
        lambda grads: momentum_of_mean(grads, 0.9),
    )


def _dgc_sgd(*args, lr, mu, **options):
    leaf = _dgc(lambda t: 0.6 if t < 2 else 0.4 if t < 4 else 0.2)
    return sgd(*args, **options, lr=RATE, mu=0.0, leaf=leaf)


def by_reducer(reducer: Callable[[], optax.GradientTransformation]) -> Callable:
    """``make`` of a row: an optimizer after a reducer."""
    return lambda opt: parsgd.compressed_sgd(opt, reducer=reducer())


def adam(oracle, x, c, *, workers, h, steps, lr, mu, **options):
    """Of 1-bit and 0/1 Adam, on the oracles' problem."""

    def gradient(x, t, w):
        return {k: np.tanh(v - c[k][t, w]) for k, v in x.items()}

    return oracle(
        x, gradient, workers=workers, steps=steps, rates=[RATE] * steps, **MOMENTS,
        **options,
    )  # fmt: skip


def zero_one(*args, **options):
    """0/1 Adam whose first four of ten steps are dense."""
    found = adam(
        reducer_oracles.zero_one_adam, *args, **options, sync={*range(4, 10)},
        variance=set(), dense=4,
    )  # fmt: skip
    return (model for _, model in found)


def _heavy_ball(eta, zeta):
    def outer(velocity, d):
        velocity = eta * velocity + zeta * d
        return velocity, velocity

    return outer


def _nesterov(velocity, d):
    velocity = 0.9 * velocity + d
    return velocity, 0.7 * (0.9 * velocity + d)


def _block(*args, workers, **options):
    outer = _heavy_ball(1 - 1 / workers, 1.0)
    leaf = plain_code(linear_8bit)
    return outer_loop(
        *args, workers=workers, **options, leaf=leaf, outer=outer, reset=True
    )


def feedback(compressor: Any) -> optax.GradientTransformation:
    """Error feedback on a code."""
    return parsgd.error_feedback(compressor)


# name: (make, H, oracle, bytes sent, other facts), the fields of `zoo.Row`
ROWS: dict[str, tuple] = {
    "power_sgd": (
        by_reducer(lambda: reducers.power_sgd(2)),
        1,
        functools.partial(sgd, leaf=matrices(_power)),
        thin,
        LOOSE,
    ),
    "dgc": (
        by_reducer(lambda: reducers.dgc(density=0.2)),
        1,
        functools.partial(sgd, leaf=_dgc(0.2)),
        gathered(sparse(0.2)),
        LOOSE,
    ),
    "demo": (
        by_reducer(lambda: reducers.demo(decay=0.9, chunk=4, k=2, sign=False)),
        1,
        functools.partial(sgd, leaf=matrices(_demo)),
        demo_payload,
        LOOSE,
    ),
    "qsgd": (
        by_reducer(
            lambda: parsgd.compressed_all_reduce(
                compressors.qsgd(levels=7, bucket_size=16, norm="max")
            )
        ),
        1,
        functools.partial(sgd, leaf=code(qsgd, feedback=False)),
        gathered(lambda n: 4 * -(-n // 8) + 4 * -(-n // 16)),
        RANDOM,
    ),
    "random_k": (
        by_reducer(lambda: feedback(compressors.random_k(density=0.2))),
        1,
        functools.partial(sgd, leaf=code(random_fifth)),
        fifth_reduced,
        LOOSE,
    ),
    "ef_sign_sgd": (
        strategies.ef_sign_sgd,
        1,
        functools.partial(reduced_steps, leaf=plain_code(scaled_sign)),
        gathered(lambda n: -(-n // 8) + 4),
        LOOSE,
    ),
    "adasum": (
        by_reducer(reducers.adasum),
        1,
        functools.partial(sgd, leaf=lambda number, grads: adasum(grads)),
        pairwise,
        {"identical": True},
    ),
    "delay": (
        by_reducer(lambda: optax.chain(parsgd.all_reduce(), reducers.delay(1))),
        1,
        functools.partial(sgd, leaf=lambda number, grads: delayed(grads)),
        all_reduced,
        LOOSE,
    ),
    "one-bit adam": (
        lambda _: strategies.one_bit_adam(
            RATE, **MOMENTS, warmup_steps=4, two_sided=False
        ),
        1,
        functools.partial(
            adam, reducer_oracles.one_bit_adam, freeze=4, correct=False, **GATHERED
        ),
        gathered(lambda n: -(-n // 8) + 8),
        LOOSE,
    ),
    "compressed local_sgd": (
        lambda opt: parsgd.local_sgd(opt, reducer=feedback(compressors.scaled_sign())),
        3,
        functools.partial(
            outer_loop, leaf=plain_code(scaled_sign), outer=lambda v, d: (v, d)
        ),
        gathered(lambda n: -(-n // 8) + 4),
        {"plain": False},
    ),
    "compressed diloco": (
        lambda opt: parsgd.diloco(
            opt, reducer=feedback(compressors.one_bit(levels="leaf"))
        ),
        3,
        functools.partial(outer_loop, leaf=plain_code(one_bit_leaf), outer=_nesterov),
        gathered(lambda n: -(-n // 8) + 8),
        {"plain": False},
    ),
}

# Not in every battery: what they share with the rows above is held there.
MORE: dict[str, tuple] = {
    "terngrad": (
        by_reducer(
            lambda: parsgd.compressed_all_reduce(compressors.terngrad(share_scale=True))
        ),
        1,
        functools.partial(sgd, leaf=matrices(terngrad)),
        gathered(lambda n: 2 * -(-n // 8) + 4 + 4),  # and the scales
        RANDOM,
    ),
    "natural": (
        by_reducer(lambda: feedback(compressors.natural())),
        1,
        functools.partial(sgd, leaf=code(natural)),
        gathered(lambda n: 9 * -(-n // 8)),
        RANDOM,
    ),
    "ef_momentum": (
        by_reducer(
            lambda: optax.chain(
                reducers.local_momentum(0.9, nesterov=True),
                feedback(compressors.scaled_sign()),
            )
        ),
        1,
        functools.partial(
            sgd,
            leaf=matrices(
                lambda number, grads: coded(grads, scaled_sign, nesterov=0.9),
                lambda grads: vectors_with_momentum(grads, 0.9),
            ),
        ),
        gathered(lambda n: -(-n // 8) + 4),
        LOOSE,
    ),
    "dgc_sgd": (
        lambda _: strategies.dgc_sgd(
            optax.sgd(RATE), density=0.2, warmup_steps=4, warmup_densities=(0.6, 0.4)
        ),
        1,
        _dgc_sgd,
        gathered(sparse(0.2)),  # once the warm-up is over
        LOOSE,
    ),
    "compressed block_momentum": (
        lambda opt: parsgd.block_momentum(
            opt, reducer=feedback(compressors.linear_8bit())
        ),
        3,
        _block,
        gathered(lambda n: n + 4),
        {"plain": False, "resets": True, "per_worker": True},
    ),
    "zero-one adam": (
        lambda _: strategies.zero_one_adam(
            RATE, **MOMENTS, **INTERVALS, two_sided=False
        ),
        2,
        functools.partial(zero_one, **GATHERED),
        gathered(lambda n: -(-n // 8) + 8),
        {"plain": False},
    ),
}
