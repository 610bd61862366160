"""Gradients whose squares leave float32: norms and products are of scaled ones."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reducing import LANES3, LANES4, gradients, trajectory

import parsgd
from parsgd.reducers import adasum, clip, dgc

SCALES = [1e-25, 1e20, 1e30]


def test_adasum_of_the_largest_numbers():
    g = np.full((2, 1, 6), 3e38, np.float32)
    outs, _ = trajectory(adasum(), ("vmap", 1, 2), {"w": g})
    np.testing.assert_allclose(outs["w"], 3e38, rtol=1e-5)  # equal: their mean


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("per_leaf", [True, False])
@pytest.mark.parametrize("place", [LANES3, LANES4])
def test_adasum_at_any_scale(place, per_leaf, scale):
    workers = place[2]
    g = {"a": gradients((4, 3), workers, 1), "b": 3 * gradients((5,), workers, 1, 1)}
    outs, _ = trajectory(adasum(per_leaf=per_leaf), place, g)
    large = {k: np.float32(scale) * v for k, v in g.items()}
    scaled, _ = trajectory(adasum(per_leaf=per_leaf), place, large)
    for k, want in outs.items():
        np.testing.assert_allclose(scaled[k] / np.float32(scale), want, rtol=1e-4)


def test_adasum_of_sizes_that_are_far_apart():
    g = np.stack([1e-30 * np.ones((1, 6)), 1e25 * np.ones((1, 6))]).astype(np.float32)
    outs, _ = trajectory(adasum(), ("vmap", 1, 2), {"w": g})
    # a + b - b/2 - a/2, for vectors of one direction.
    np.testing.assert_allclose(outs["w"], 5e24, rtol=1e-5)


@pytest.mark.parametrize("scale", SCALES)
def test_dgc_clips_at_any_scale(scale):
    """A norm that overflows would leave nothing of the gradient."""
    g = {"w": gradients((6, 5), 4, 4), "b": gradients((5,), 4, 4, 1)}
    limit = 0.5 * float(np.linalg.norm(g["w"][0, 0]))
    outs, _ = trajectory(dgc(density=0.2, clip_norm=limit), LANES4, g)
    large = {k: np.float32(scale) * v for k, v in g.items()}
    clipped = dgc(density=0.2, clip_norm=limit * scale)
    scaled, _ = trajectory(clipped, LANES4, large)
    for k, want in outs.items():
        got = scaled[k] / np.float32(scale)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_clip_is_optax_s_where_squares_fit():
    g = {"w": jnp.asarray(gradients((6, 5), 1, 1)[0, 0]), "b": jnp.ones(3)}
    for norm in (0.1, 3.0, 100.0):
        want = optax.clip_by_global_norm(norm).update(g, optax.EmptyState())[0]
        got = clip(norm).update(g, ())[0]
        for k in g:
            np.testing.assert_allclose(got[k], want[k], rtol=1e-6)
    zeros = jax.tree.map(jnp.zeros_like, g)
    assert not any(x.any() for x in jax.tree.leaves(clip(1.0).update(zeros, ())[0]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_has_no_norm_is_nan_everywhere(value):
    g = {"w": jnp.array([1.0, value]), "b": jnp.ones(3)}
    for reducer in (clip(1.0), dgc(clip_norm=1.0)):
        out, _ = reducer.update(g, reducer.init(g))
        assert all(np.isnan(x).all() for x in out.values())


@pytest.mark.parametrize("where", ["clip_before", "clip_after"])
def test_compressed_sgd_clips_what_is_very_large(where):
    strategy = parsgd.compressed_sgd(
        optax.sgd(1.0), reducer=parsgd.all_reduce(), **{where: 1.0}
    )
    x = jnp.zeros(2)
    grads = jnp.array([3e25, 4e25])
    moved, _ = strategy.local(grads, strategy.init(x), x)
    np.testing.assert_allclose(moved, [-0.6, -0.8], rtol=1e-6)


@pytest.mark.parametrize("size", [1e-37, 1e19, 1e37, 3e38])
def test_clip_of_the_smallest_and_largest_numbers(size):
    g = {"w": jnp.full((4, 4), size), "b": jnp.full(9, -size)}
    out = clip(size).update(g, ())[0]
    for k, sign in (("w", 1), ("b", -1)):
        np.testing.assert_allclose(np.float64(out[k]) / size, sign / 5, rtol=1e-5)
    less = clip(1.0).update(g, ())[0]
    np.testing.assert_allclose(less["w"], size if size < 1e-30 else 0.2, rtol=1e-5)
    g["b"] = g["b"].at[3].set(jnp.nan)
    alone = {"w": jnp.zeros((90, 90)).at[0, 0].set(jnp.nan), "b": jnp.zeros(5)}
    for x in jax.tree.leaves(clip(1.0).update(alone, ())[0]):
        assert np.isnan(x).all()
    for x in jax.tree.leaves(clip(size).update(g, ())[0]):
        assert not np.isfinite(x).all()
