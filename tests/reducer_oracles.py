"""Reducers as plain numpy loops over workers, written from their papers.

The reducers take one leaf's gradients ``[steps, W, ...]`` in float64 and yield what all
workers get in each step, with the workers' own state after it.
"""

import numpy as np
from scipy import fft


def power_sgd(grads, q, *, iterations=1, warm_start=True, feedback=True):
    """``q`` is the first Q ``[n, r]``, or one for each step without a warm start."""
    workers = grads.shape[1]
    shape = grads.shape[2:]
    errors = [np.zeros((np.prod(shape[:-1]), shape[-1])) for _ in range(workers)]
    for t, step in enumerate(grads):
        ms = [g.reshape(-1, shape[-1]) + e for g, e in zip(step, errors, strict=True)]
        right = q if warm_start else q[t]
        for _ in range(iterations):
            p = sum(m @ right for m in ms) / workers
            # Gram-Schmidt, one column after the other.
            for i in range(p.shape[1]):
                for j in range(i):
                    p[:, i] -= p[:, j] @ p[:, i] * p[:, j]
                p[:, i] /= np.linalg.norm(p[:, i])
            right = sum(m.T @ p for m in ms) / workers
        if warm_start:
            q = right
        out = p @ right.T
        if feedback:
            errors = [m - out for m in ms]
        yield out.reshape(shape), [e.reshape(shape) for e in errors]


def dgc(grads, *, density, momentum, masking=True, nesterov=False, clip=None):
    """``density``: a share of the entries, or that of each step, ``density(t)``."""
    workers, shape = grads.shape[1], grads.shape[2:]
    n = int(np.prod(shape))
    u, v = np.zeros((workers, n)), np.zeros((workers, n))
    for t, step in enumerate(grads):
        k = max(1, round((density(t) if callable(density) else density) * n))
        out = np.zeros(n)
        for w in range(workers):
            g = step[w].reshape(-1)
            if clip is not None:
                g = g * min(1, clip / np.sqrt(workers) / np.linalg.norm(g))
            if nesterov:
                # The published code's form: its velocity is m times the usual one.
                last = momentum * (momentum * u[w] + g)
                v[w] += last + g
                u[w] = momentum * u[w] + g
            else:
                u[w] = momentum * u[w] + g
                v[w] += u[w]
            sent = np.argsort(-np.abs(v[w]), kind="stable")[:k]
            out[sent] += v[w][sent] / workers
            v[w][sent] = 0
            if masking:
                u[w][sent] = 0
        yield out.reshape(shape), [x.reshape(shape).copy() for x in v]


def demo(grads, *, lr, decay, side, k, sign):
    """``side``: the blocks' height and width."""
    workers, shape = grads.shape[1], grads.shape[2:]
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    high, wide = side
    ms = [np.zeros((rows, columns)) for _ in range(workers)]
    for step in grads:
        ms = [
            decay * m + lr * g.reshape(rows, columns)
            for m, g in zip(ms, step, strict=True)
        ]
        out = np.zeros((rows, columns))
        for i in range(0, rows, high):
            for j in range(0, columns, wide):
                at = np.s_[i : i + high, j : j + wide]
                sums, senders = np.zeros(high * wide), np.zeros(high * wide)
                for m in ms:
                    c = fft.dctn(m[at], norm="ortho").reshape(-1)
                    sent = np.argsort(-np.abs(c))[:k]
                    own = np.zeros(high * wide)
                    own[sent] = c[sent]
                    sums, senders = sums + own, senders + np.isin(range(c.size), sent)
                    m[at] -= fft.idctn(own.reshape(high, wide), norm="ortho")
                mean = (sums / np.maximum(senders, 1)).reshape(high, wide)
                out[at] = fft.idctn(mean, norm="ortho")
        out = np.sign(out) if sign else out
        yield out.reshape(shape), [m.reshape(shape).copy() for m in ms]


def adasum(vectors):
    """One step: the recursion over halves; for other W uneven pairs first."""
    count = len(vectors)
    if count == 1:
        return vectors[0]
    core = 1 << (count.bit_length() - 1)
    if core < count:
        folded = [
            _pair(vectors[i], vectors[core + i]) if core + i < count else vectors[i]
            for i in range(core)
        ]
        return adasum(folded)
    pairs = [_pair(vectors[i], vectors[i + 1]) for i in range(0, count, 2)]
    return adasum(pairs)


def _pair(a, b):
    ab = np.sum(a * b)
    return (1 - ab / (2 * np.sum(a * a))) * a + (1 - ab / (2 * np.sum(b * b))) * b


class OneBitAllReduce:
    """One array's two-sided exchange with error feedback of the workers and owners.

    One scale for each sign, over the part that is encoded at once: a stripe of columns,
    or each of its columns. The last stripes may be narrower, or nothing.
    """

    def __init__(self, shape, workers, *, by_column=False, norm2=False):
        self.workers, self.shape, self.by_column = workers, shape, by_column
        self.norm2 = norm2
        self.rows = int(np.prod(shape[:-1]))
        self.width = -(-shape[-1] // workers)
        self.errors = [np.zeros(shape) for _ in range(workers)]
        self.owed = [self._stripe(np.zeros(shape), r) for r in range(workers)]

    def _encoded(self, v, live):
        """Levels are means of live entries; the others are sent as nothing."""
        if self.by_column:
            pairs = zip(v.T, live.T, strict=True)
            columns = [self._signs(column, on) for column, on in pairs]
            return np.stack(columns, 1) if columns else v
        return self._signs(v, live)

    def _signs(self, v, live):
        q = np.zeros_like(v)
        if self.norm2:  # of the live entries, kept by their signs
            size = np.sqrt(np.square(v[live]).sum() / max(live.sum(), 1))
            return np.where(live, np.where(v >= 0, size, -size), 0)
        for mask in (live & (v >= 0), live & (v < 0)):
            if mask.any():
                q[mask] = v[mask].mean()
        return q

    def _stripe(self, x, r):
        return x.reshape(self.rows, -1)[:, r * self.width : (r + 1) * self.width]

    def __call__(self, arrays, live):
        live = np.broadcast_to(live, self.shape)
        alive = [self._stripe(live, r) for r in range(self.workers)]
        totals = [a + e for a, e in zip(arrays, self.errors, strict=True)]
        result, sent = np.zeros((self.rows, self.shape[-1])), []
        coded = [
            [self._encoded(self._stripe(t, r), alive[r]) for r in range(self.workers)]
            for t in totals
        ]
        for w in range(self.workers):
            whole = np.concatenate(coded[w], axis=1)
            sent.append(whole.reshape(self.shape))
        for r in range(self.workers):
            total = sum(c[r] for c in coded) / self.workers + self.owed[r]
            again = self._encoded(total, alive[r])
            self.owed[r] = np.where(alive[r], total - again, 0)
            result[:, r * self.width : (r + 1) * self.width] = again
        self.errors = [
            np.where(live, t - s, 0) for t, s in zip(totals, sent, strict=True)
        ]
        return np.where(live, result.reshape(self.shape), 0)


class OneBitGather(OneBitAllReduce):
    """Every worker gets the average of what all arrays, whole, were encoded to."""

    def __call__(self, arrays, live):
        live = np.broadcast_to(live, self.shape)
        totals = [a + e for a, e in zip(arrays, self.errors, strict=True)]
        sent = [self._encoded(v, live) for v in totals]
        self.errors = [
            np.where(live, v - s, 0) for v, s in zip(totals, sent, strict=True)
        ]
        return np.where(live, np.mean(sent, axis=0), 0)


def _reducers(x, workers, exchange):
    """An exchange for each matrix; None for what is averaged."""
    return {k: exchange(v.shape, workers) if v.ndim > 1 else None for k, v in x.items()}


def _reduce(one_bit, arrays, live):
    if one_bit is None:
        return np.where(live, np.mean(arrays, axis=0), 0)
    return one_bit(arrays, live)


def one_bit_adam(
    x, gradient, *, workers, steps, rates, b1, b2, eps, freeze, correct,
    exchange=OneBitAllReduce,
):  # fmt: skip
    """``gradient(x, t, w)``; yields the model after every step."""
    m, v = ({k: np.zeros_like(p) for k, p in x.items()} for _ in range(2))
    reducers = _reducers(x, workers, exchange)
    for t in range(steps):
        gs = [gradient(x, t, w) for w in range(workers)]
        for k in x:
            own = [g[k] for g in gs]
            if t < freeze:
                g = np.mean(own, axis=0)
                m[k] = b1 * m[k] + (1 - b1) * g
                v[k] = b2 * v[k] + (1 - b2) * g**2
            else:
                halves = [b1 * m[k] + (1 - b1) * g for g in own]
                m[k] = _reduce(reducers[k], halves, v[k] > 0)
        one = 1 - b1 ** (t + 1) if correct else 1
        two = 1 - b2 ** min(t + 1, freeze) if correct else 1
        x = {k: x[k] - rates[t] * m[k] / one / (np.sqrt(v[k] / two) + eps) for k in x}
        yield x


def zero_one_adam(
    x, gradient, *, workers, steps, rates, b1, b2, eps, sync, variance, dense,
    exchange=OneBitAllReduce,
):  # fmt: skip
    """``sync``, ``variance``: the step sets T_u and T_v; ``dense``: first steps that
    all-reduce. Yields ``(t, model)`` where all workers meet."""
    v = {k: np.zeros_like(p) for k, p in x.items()}
    ms = [{k: np.zeros_like(p) for k, p in x.items()} for _ in range(workers)]
    us = [{k: np.zeros_like(p) for k, p in x.items()} for _ in range(workers)]
    xs, start, since = [x] * workers, x, 0.0
    reducers = _reducers(x, workers, exchange)

    def step(u, k):
        return np.where(v[k] > 0, u / (np.sqrt(v[k]) + eps), 0)

    for t in range(steps):
        gs = [gradient(xs[w], t, w) for w in range(workers)]
        mean = {k: np.mean([g[k] for g in gs], axis=0) for k in x}
        if t < dense:
            v = {k: b2 * v[k] + (1 - b2) * mean[k] ** 2 for k in x}
            m = {k: b1 * ms[0][k] + (1 - b1) * mean[k] for k in x}
            start = {k: start[k] - step(rates[t] * m[k], k) for k in x}
            ms, xs = [dict(m) for _ in range(workers)], [start] * workers
            yield t, start
            continue
        since += rates[t]
        for w in range(workers):
            ms[w] = {k: b1 * ms[w][k] + (1 - b1) * gs[w][k] for k in x}
            xs[w] = {k: xs[w][k] - step(rates[t] * ms[w][k], k) for k in x}
            us[w] = {k: us[w][k] + rates[t] * ms[w][k] for k in x}
        if t in sync:
            u = {k: _reduce(reducers[k], [own[k] for own in us], v[k] > 0) for k in x}
            start = {k: start[k] - step(u[k], k) for k in x}
            m = {k: u[k] / since for k in x}
            ms, xs = [dict(m) for _ in range(workers)], [start] * workers
            us = [{k: np.zeros_like(p) for k, p in x.items()} for _ in range(workers)]
            since = 0.0
        if t in variance:
            v = {k: b2 * v[k] + (1 - b2) * mean[k] ** 2 for k in x}
        if t in sync:
            yield t, start
