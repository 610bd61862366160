"""Compressed SGD as numpy loops: what one leaf's reducer does, and the loops around it.

A leaf's reducer is a generator over steps, as in `reducer_oracles`: it takes the
workers' arrays ``[W, ...]`` and yields what all of them get (and its own state). Loops
are handed ``leaf(number, grads)``: the reducer of a matrix, with its place among the
matrices by name, or of a vector, whose number is None.
"""

from typing import Any

import jax
import numpy as np
import quantizer_oracles
import reducer_oracles
from oracles import _gradient, _map, _one_bit, _rounds, _train_alone, _zeros

from parsgd.compressors.random import uniform_bits


class Steps:
    """Arrays that become known one step after the other."""

    def __init__(self, workers, shape):
        self.shape, self.now = (0, workers, *shape), None

    def __iter__(self):
        while True:
            yield self.now


class Reduced:
    """The reducers of all leaves: dicts of each worker in, one dict out."""

    def __init__(self, x, workers, leaf):
        matrices = sorted(k for k, v in x.items() if v.ndim > 1)
        self.steps = {k: Steps(workers, v.shape) for k, v in x.items()}
        self.leaves = {
            k: leaf(matrices.index(k) if k in matrices else None, steps)
            for k, steps in self.steps.items()
        }

    def __call__(self, own):
        for k, steps in self.steps.items():
            steps.now = np.stack([g[k] for g in own])
        return {k: next(leaf)[0] for k, leaf in self.leaves.items()}


def mean(grads):
    for step in grads:
        yield step.mean(0), None


def delayed(grads):
    last = np.zeros(grads.shape[2:])
    for step in grads:
        yield last, None
        last = step.mean(0)


def momentum_of_mean(grads, decay):
    m = np.zeros(grads.shape[2:])
    for step in grads:
        m = decay * m + step.mean(0)
        yield m, None


def coded(grads, code, *, feedback=True, nesterov=None):
    """``code(v, t, w)``; with error feedback, and Nesterov momentum before it."""
    errors, ms = np.zeros(grads.shape[1:]), np.zeros(grads.shape[1:])
    for t, step in enumerate(grads):
        own = step
        if nesterov is not None:
            ms = nesterov * ms + step
            own = nesterov * ms + step
        total = own + errors if feedback else own
        sent = np.stack([code(v, t, w) for w, v in enumerate(total)])
        if feedback:
            errors = total - sent
        yield sent.mean(0), errors.copy()


def vectors_with_momentum(grads, decay):
    """What is averaged as it is, after each worker's Nesterov momentum."""
    return coded(grads, lambda v, t, w: v, feedback=False, nesterov=decay)


def adasum(grads):
    for step in grads:
        flat = reducer_oracles.adasum([v.reshape(-1) for v in step])
        yield flat.reshape(step.shape[1:]), None


def scaled_sign(v, *_):
    return np.abs(v).mean() * np.where(v >= 0, 1, -1)


def one_bit_leaf(v, *_):
    return _one_bit(v, column=False)


def linear_8bit(v, *_):
    unit = np.abs(v).max() / 127
    return unit * np.round(v / unit)


def exchange_key(step: int, number: int, worker: int | None) -> jax.Array:
    """As the exchange derives it; without a worker where all draw alike."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), step), number)
    return key if worker is None else jax.random.fold_in(key, worker)


def _draws(v: Any, *place: Any) -> np.ndarray:
    words = uniform_bits(exchange_key(*place), (v.size,))
    return quantizer_oracles.uniform(words)


def qsgd(number, v, t, w):
    flat, u = v.reshape(-1), _draws(v, t, number, w)
    return quantizer_oracles.qsgd(flat, u, 7, 16, "max").reshape(v.shape)


def natural(number, v, t, w):
    bits = np.asarray(uniform_bits(exchange_key(t, number, w), (v.size,)) >> 9)
    return quantizer_oracles.natural(v.reshape(-1), bits / 2**23).reshape(v.shape)


def random_fifth(number, v, t, w):
    order = np.asarray(uniform_bits(exchange_key(t, number, None), (v.size,)) >> 1)
    chosen = np.argsort(order)[::-1][: round(0.2 * v.size)]
    out = np.zeros(v.size)
    out[chosen] = v.reshape(-1)[chosen]
    return out.reshape(v.shape)


def terngrad(number, grads):
    """Ternary numbers of the largest scale of all workers."""
    for t, step in enumerate(grads):
        limits = [2.5 * np.sqrt(np.mean(v**2)) for v in step]
        step = [np.clip(v, -c, c) for v, c in zip(step, limits, strict=True)]
        s = np.max(np.abs(step))
        out = [
            s * quantizer_oracles.up_or_down(v.reshape(-1) / s, _draws(v, t, number, w))
            for w, v in enumerate(step)
        ]
        yield np.mean(out, axis=0).reshape(step[0].shape), None


def sgd(x, c, *, workers, h, steps, lr, mu, leaf):
    """Heavy ball on what the reducers make of the gradients."""
    m, reduced = _zeros(x), Reduced(x, workers, leaf)
    for t in range(steps):
        g = reduced([_gradient(x, c, t, w) for w in range(workers)])
        m = _map(lambda a, b: mu * a + b, m, g)
        x = _map(lambda a, b: a - lr * b, x, m)
        yield x


def reduced_steps(x, c, *, workers, h, steps, lr, mu, leaf):
    """Each worker's own heavy-ball step goes through the reducers."""
    ms, reduced = [_zeros(x)] * workers, Reduced(x, workers, leaf)
    for t in range(steps):
        for w in range(workers):
            g = _gradient(x, c, t, w)
            ms[w] = _map(lambda a, b: mu * a + b, ms[w], g)
        step = reduced([_map(lambda a: lr * a, m) for m in ms])
        x = _map(np.subtract, x, step)
        yield x


def outer_loop(x, c, *, workers, h, steps, lr, mu, leaf, outer, reset=False):
    """Workers' progress through the reducers; ``outer(velocity, d)`` gives the
    velocity and the step."""
    ms, velocity = [_zeros(x)] * workers, _zeros(x)
    reduced = Reduced(x, workers, leaf)
    for first, last in _rounds(steps, h):
        moved = []
        for w in range(workers):
            m = _zeros(x) if reset else ms[w]
            end, ms[w] = _train_alone(x, m, c, w, first, last, lr, mu)
            moved.append(_map(np.subtract, x, end))
        d = reduced(moved)
        pairs = {k: outer(velocity[k], d[k]) for k in x}
        velocity = {k: v for k, (v, _) in pairs.items()}
        x = {k: x[k] - step for k, (_, step) in pairs.items()}
        yield x
