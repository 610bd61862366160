"""Reducers on any gradients: nothing from nothing, nothing lost, nothing spoilt.

Gradients, their sizes and what is not finite are drawn; shapes, types and numbers of
workers come from short lists, so that each reducer is compiled four times.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st
from reducing import dense, sent

from parsgd import comm
from parsgd.compressors import (
    dynamic_tree_8bit,
    fp8,
    fp16,
    linear_8bit,
    natural,
    one_bit,
    qsgd,
    random_k,
    scaled_sign,
    threshold,
    top_k,
)
from parsgd.reducers import (
    adasum,
    all_reduce,
    compressed_all_reduce,
    delay,
    demo,
    dgc,
    ef21,
    error_feedback,
    power_sgd,
    skip_nonfinite,
)

SHAPES = {"scalar": (), "one": (1,), "none": (0, 4), "w": (4, 6), "k": (3, 3, 2, 5)}
PLACES = [(1, "float32"), (2, "bfloat16"), (3, "float32"), (4, "float16")]
LEAF = one_bit(levels="leaf")

FEEDBACK = {
    "one_bit": error_feedback(LEAF),
    "one_bit two-sided": error_feedback(LEAF, two_sided=True),
    "one_bit bucket": error_feedback(LEAF, bucket=True),
    "top_k": error_feedback(top_k(density=0.2)),
    "random_k": error_feedback(random_k(density=0.2)),
    "natural": error_feedback(natural()),
    "8 bit two-sided": error_feedback(linear_8bit(), two_sided=True),
}
DGC = {"dgc": dgc(density=0.1), "dgc nesterov": dgc(density=0.1, nesterov=True)}
OTHERS = {
    "all_reduce": all_reduce(),
    "ring": all_reduce(algorithm="ring"),
    "qsgd": compressed_all_reduce(qsgd()),
    "ef21": ef21(top_k(density=0.2)),
    "power_sgd": power_sgd(2),
    "demo": demo(k=2),
    "adasum": adasum(),
    "delay": optax.chain(all_reduce(), delay(1)),
    "skip_nonfinite": skip_nonfinite(error_feedback(LEAF)),
}
CODES = {
    "one_bit columns": error_feedback(one_bit()),
    "scaled_sign": error_feedback(scaled_sign()),
    "qsgd feedback": error_feedback(qsgd(levels=15, bucket_size=64)),
    "dynamic_tree_8bit": error_feedback(dynamic_tree_8bit()),
    "fp16": error_feedback(fp16()),
    "fp8": error_feedback(fp8()),
    "threshold": error_feedback(threshold(tau=0.5, max_density=0.2)),
    "top_k values": error_feedback(top_k(density=0.2, values=linear_8bit())),
}
REDUCERS = FEEDBACK | DGC | OTHERS | CODES


REMEMBERING = [*FEEDBACK, *DGC, "ef21", "power_sgd", "demo", "skip_nonfinite"]

DRAWN = {
    "place": st.sampled_from(PLACES),
    "scale": st.sampled_from([1e-3, 1.0, 100.0]),
    "seed": st.integers(0, 10_000),
}
few = settings(deadline=None, max_examples=12)


@functools.cache
def compiled(name, workers, dtype):
    """Zero gradients, the first state and a program for the steps."""
    lanes = functools.partial(jax.vmap, axis_name=comm.LANES, axis_size=workers)
    like = {k: jnp.zeros((workers, *s), dtype) for k, s in SHAPES.items()}
    return like, lanes(REDUCERS[name].init)(like), jax.jit(lanes(REDUCERS[name].update))


class Run:
    """A reducer's steps on gradients that differ by worker and step."""

    def __init__(self, name, place, scale=1.0, seed=0):
        self.like, self.state, self._update = compiled(name, *place)
        self.scale, self.rng = scale, np.random.default_rng(seed)

    def gradients(self):
        def drawn(x):
            return (self.scale * self.rng.normal(size=x.shape)).astype(x.dtype)

        return jax.tree.map(drawn, self.like)

    def step(self, grads):
        """What workers get, and the state before."""
        old = self.state
        out, self.state = self._update(grads, old)
        return out, old


def wide(x):
    return np.asarray(x).astype(np.float64)


def floats(state):
    """Arrays of a state by path."""
    return {
        jax.tree_util.keystr(path): np.asarray(x)
        for path, x in jax.tree.leaves_with_path(state)
        if jnp.issubdtype(x.dtype, jnp.floating)
    }


@pytest.mark.parametrize("name", [*FEEDBACK, *DGC, *OTHERS])
def test_nothing_comes_of_zero_gradients(name):
    for place in PLACES:
        run = Run(name, place)
        for _ in range(2):
            out, _ = run.step(run.like)
        kept = [x for path, x in floats(run.state).items() if not constant(path)]
        for x in (*jax.tree.leaves(out), *kept):
            assert not np.any(wide(x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "name", sorted({*REDUCERS} - {"adasum", "ring", "skip_nonfinite"})
)
def test_B5_two_workers_never_send_more_than_the_arrays(name, dtype):
    shapes = [*SHAPES.values(), (6, 10), (4, 4), (2, 9)]
    found = sent(REDUCERS[name], shapes, 2, jnp.dtype(dtype)).bytes
    assert found <= dense(shapes, 2) * jnp.dtype(dtype).itemsize / 4


def constant(path):
    """PowerSGD's Q, which is drawn."""
    return ".q" in path


def whole(stripes, shape):
    """What the owners of an array's stripes have, padding cut off."""
    return np.concatenate([*wide(stripes)], -1)[:, : shape[-1]].reshape(shape)


def parts(tree, bucket):
    """Arrays ``[W, ...]`` by the paths of a reducer's state."""
    if bucket is None:
        return {f"['{k}']": wide(x) for k, x in tree.items()}
    flat = [wide(x).reshape(len(x), -1) for x in jax.tree.leaves(tree)]
    return {bucket: np.concatenate(flat, -1)}


def assert_conserved(sent, came, dtype, scale):
    """Equal, but for the rounding of sums, and of what is sent to its own type."""
    size = scale + np.abs(came).max(initial=0) + np.abs(sent).max(initial=0)
    atol = 1e-7 + size * max(1e-5, float(jnp.finfo(dtype).eps))
    np.testing.assert_allclose(sent, came, rtol=0, atol=atol)


@pytest.mark.parametrize("name", [*FEEDBACK, *CODES])
@few
@given(**DRAWN)
def test_B1_what_is_sent_and_kept_came_or_was_kept(name, place, scale, seed):
    """On average over workers; two-sided the owners of stripes keep something too."""
    run = Run(name, place, scale, seed)
    bucket = next((p for p in run.state.error if p.startswith("bucket")), None)
    for _ in range(3):
        grads = run.gradients()
        out, old = run.step(grads)
        sent, new = parts(out, bucket), run.state
        for path, came in parts(grads, bucket).items():
            left, right = sent[path][0], came.mean(0)
            if path in new.error:
                left = left + wide(new.error[path]).mean(0)
                right = right + wide(old.error[path]).mean(0)
            if path in new.exchange.owner_error:
                left = left + whole(new.exchange.owner_error[path], left.shape)
                right = right + whole(old.exchange.owner_error[path], left.shape)
            # Rounding to the leaf's own type is owed too, that of sums on the way not.
            added = "float16" if name == "fp16" else "float32"
            kind = added if path in new.error else place[1]
            assert_conserved(left, right, kind, scale)
        assert all((wide(x) == wide(x)[:1]).all() for x in out.values())


@pytest.mark.parametrize("name", DGC)
@few
@given(**DRAWN)
def test_B1_dgc_sends_late_what_momentum_makes_of_gradients(name, place, scale, seed):
    run, m = Run(name, place, scale, seed), 0.9
    for _ in range(3):
        grads = run.gradients()
        out, old = run.step(grads)
        for path, g in parts(grads, None).items():
            if path in old.accumulated:
                u = m * wide(old.velocity[path]) + g
                step = m * u + g if "nesterov" in name else u
                came = (wide(old.accumulated[path]) + step).mean(0)
                kept = wide(run.state.accumulated[path]).mean(0)
                sent = parts(out, None)[path][0]
                assert_conserved(sent + kept, came, place[1], scale)


@few
@given(**DRAWN)
def test_B1_ef21_hands_on_the_mean_of_all_estimates(place, scale, seed):
    run = Run("ef21", place, scale, seed)
    for _ in range(3):
        out, _ = run.step(run.gradients())
        for path, h in run.state.estimate.items():
            assert_conserved(
                parts(out, None)[path][0], wide(h).mean(0), place[1], scale
            )


@pytest.mark.parametrize("name", REMEMBERING)
@few
@given(
    **DRAWN,
    leaf=st.sampled_from(["scalar", "one", "w", "k"]),
    value=st.sampled_from([np.nan, np.inf, -np.inf]),
)
def test_what_is_not_finite_spoils_no_residual(name, place, scale, seed, leaf, value):
    run = Run(name, place, scale, seed)
    run.step(run.gradients())
    grads = run.gradients()
    flat = grads[leaf].reshape(-1)
    flat[run.rng.integers(flat.size)] = value  # one entry of one worker
    out, old = run.step(grads)
    before, after = floats(old), floats(run.state)
    for path, x in after.items():
        assert np.isfinite(wide(x)).all(), path
        if f"['{leaf}']" in path or "bucket" in path or name == "skip_nonfinite":
            np.testing.assert_array_equal(x, before[path])
    seen = wide(out[leaf]).reshape(place[0], -1)
    if name == "skip_nonfinite":
        assert not seen.any()
    else:
        assert not np.isfinite(seen).all(1).any()
    out, _ = run.step(run.gradients())
    assert all(np.isfinite(wide(x)).all() for x in out.values())
