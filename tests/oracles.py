"""Algorithms as plain numpy loops, written from their papers.

Worker w's gradient at step t is ``tanh(x - c[t, w])``: were it linear in x, the mean of
the workers would not depend on how they synchronise. Parameters are dicts of arrays;
the local optimizer is SGD with heavy-ball momentum, ``m <- mu m + g, x <- x - lr m``.
Each yields the model after every round.
"""

import numpy as np

from parsgd.core import Params


def _map(fn, *trees) -> Params:
    return {k: fn(*(t[k] for t in trees)) for k in trees[0]}


def _mean(trees) -> Params:
    return _map(lambda *xs: np.mean(xs, axis=0), *trees)


def _zeros(tree) -> Params:
    return _map(np.zeros_like, tree)


def _gradient(x, c, t, w) -> Params:
    return {k: np.tanh(v - c[k][t, w]) for k, v in x.items()}


def _rounds(steps, h, switch=0):
    """First and last step of each round: of one step until ``switch``, then of h."""
    start = 0
    while start < steps:
        size = 1 if start < switch else h
        size = min(size, steps - start)
        yield start, start + size
        start += size


def _train_alone(x, m, c, w, first, last, lr, mu):
    for t in range(first, last):
        g = _gradient(x, c, t, w)
        m = _map(lambda a, b: mu * a + b, m, g)
        x = _map(lambda a, b: a - lr * b, x, m)
    return x, m


def single(x, c, *, workers, h, steps, lr, mu):
    xs, ms = [x] * workers, [_zeros(x)] * workers
    for first, last in _rounds(steps, h):
        for w in range(workers):
            xs[w], ms[w] = _train_alone(xs[w], ms[w], c, w, first, last, lr, mu)
        yield _mean(xs)


def sync_sgd(x, c, *, workers, h, steps, lr, mu):
    m = _zeros(x)
    for t in range(steps):
        g = _mean([_gradient(x, c, t, w) for w in range(workers)])
        m = _map(lambda a, b: mu * a + b, m, g)
        x = _map(lambda a, b: a - lr * b, x, m)
        yield x


def local_sgd(x, c, *, workers, h, steps, lr, mu, policy="keep", switch=0):
    ms = [_zeros(x)] * workers
    for first, last in _rounds(steps, h, switch):
        xs = [None] * workers
        for w in range(workers):
            xs[w], ms[w] = _train_alone(x, ms[w], c, w, first, last, lr, mu)
        x = _mean(xs)
        if policy == "average":
            ms = [_mean(ms)] * workers
        if policy == "reset":
            ms = [_zeros(x)] * workers
        yield x


def block_momentum(
    x, c, *, workers, h, steps, lr, mu, eta=None, zeta=1.0, nesterov=False, gain="paper"
):
    eta = 1 - 1 / workers if eta is None else eta
    model, start, velocity = x, x, _zeros(x)
    for first, last in _rounds(steps, h):
        zero = _zeros(x)
        alone = [
            _train_alone(start, zero, c, w, first, last, lr, mu)[0]
            for w in range(workers)
        ]
        if gain == "cntk":  # the sum of the workers' progress, times (1 - eta)
            total = _map(lambda *v: sum(v), *alone)
            push = _map(
                lambda s, x0: (1 - eta) * zeta * (s - workers * x0), total, start
            )
        else:
            push = _map(lambda a, x0: zeta * (a - x0), _mean(alone), start)
        velocity = _map(lambda v, p: eta * v + p, velocity, push)
        if not nesterov:
            model = start = _map(np.add, model, velocity)
        elif gain == "paper":
            model = _map(np.add, model, velocity)
            start = _map(lambda w, v: w + eta * v, model, velocity)
        else:  # the look-ahead point becomes the next model
            model = start = _map(lambda w, v: w + v + eta * v, model, velocity)
        yield model


def diloco(x, c, *, workers, h, steps, lr, mu, rate=0.7, outer=0.9):
    ms, velocity = [_zeros(x)] * workers, _zeros(x)
    for first, last in _rounds(steps, h):
        xs = [None] * workers
        for w in range(workers):
            xs[w], ms[w] = _train_alone(x, ms[w], c, w, first, last, lr, mu)
        delta = _map(np.subtract, x, _mean(xs))
        velocity = _map(lambda v, d: outer * v + d, velocity, delta)
        x = _map(lambda a, v, d: a - rate * (outer * v + d), x, velocity, delta)
        yield x


def _one_bit(v, column):
    """Quantise a matrix, one column (or all of it) at a time."""
    q = np.zeros_like(v)
    columns = range(v.shape[-1]) if column else [slice(None)]
    for j in columns:
        part, out = v[..., j], q[..., j]
        for mask in (part >= 0, part < 0):
            if mask.any():
                out[mask] = part[mask].mean()
    return q


def _largest(v, density):
    """The k entries of largest absolute value, the others zero."""
    k = max(1, round(density * v.size))
    keep = np.argsort(-abs(v.ravel()), kind="stable")[:k]
    out = np.zeros(v.size)
    out[keep] = v.ravel()[keep]
    return out.reshape(v.shape)


def compressed_sgd(x, c, *, workers, h, steps, lr, mu, code, feedback):
    """Matrices through ``code`` with feedback "ef" or "ef21"; vectors dense."""
    m, kept = _zeros(x), [_zeros(x) for _ in range(workers)]
    for t in range(steps):
        g = {}
        for k, value in x.items():
            own = [np.tanh(value - c[k][t, w]) for w in range(workers)]
            if value.ndim > 1 and feedback == "ef":
                total = [g + e[k] for g, e in zip(own, kept, strict=True)]
                own = [code(v) for v in total]
                for e, v, q in zip(kept, total, own, strict=True):
                    e[k] = v - q
            elif value.ndim > 1:
                for w in range(workers):
                    kept[w][k] = kept[w][k] + code(own[w] - kept[w][k])
                own = [e[k] for e in kept]
            g[k] = np.mean(own, axis=0)
        m = _map(lambda a, b: mu * a + b, m, g)
        x = _map(lambda a, b: a - lr * b, x, m)
        yield x


def sign_majority(x, c, *, workers, h, steps, lr, mu):
    m = _zeros(x)
    for t in range(steps):
        votes = [_map(np.sign, _gradient(x, c, t, w)) for w in range(workers)]
        g = _map(lambda *v: np.where(sum(v) >= 0, 1.0, -1.0), *votes)
        m = _map(lambda a, b: mu * a + b, m, g)
        x = _map(lambda a, b: a - lr * b, x, m)
        yield x


def one_bit_sgd(x, c, *, workers, h, steps, lr, mu, column=True, start=0):
    m, errors = _zeros(x), [_zeros(x) for _ in range(workers)]
    for t in range(steps):
        g = {}
        for k, value in x.items():
            own = [np.tanh(value - c[k][t, w]) for w in range(workers)]
            groups = value.shape[-1] if column and value.ndim > 1 else 1
            packs = value.ndim > 1 and -(-value.size // 8) + 8 * groups < 4 * value.size
            if t < start or not packs:
                g[k] = np.mean(own, axis=0)
                continue
            sent = []
            for w in range(workers):
                v = own[w] + errors[w][k]
                q = _one_bit(v, column)
                errors[w][k] = v - q
                sent.append(q)
            g[k] = np.mean(sent, axis=0)
        m = _map(lambda a, b: mu * a + b, m, g)
        x = _map(lambda a, b: a - lr * b, x, m)
        yield x
