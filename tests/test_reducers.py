"""What all reducers keep: shapes, bytes, what was lost, NaN, delay."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reducing import LANES3, LANES4, SHAPES, dense, gradients, sent, trajectory
from sparse_oracles import index_bytes

from parsgd.compressors import one_bit
from parsgd.reducers import (
    adasum,
    all_reduce,
    delay,
    demo,
    dgc,
    error_feedback,
    local_momentum,
    power_sgd,
    skip_nonfinite,
)


@pytest.mark.parametrize("k", [0, 1, 3])
def test_delay_hands_on_what_came_k_steps_ago(k):
    g = gradients((2, 3), 4, 7)
    outs, _ = trajectory(optax.chain(all_reduce(), delay(k)), LANES4, {"w": g})
    direct, _ = trajectory(all_reduce(), LANES4, {"w": g})
    np.testing.assert_array_equal(outs["w"][:, k:], direct["w"][:, : 7 - k])
    assert not outs["w"][:, :k].any()


def test_delay_of_nothing_is_nothing():
    assert jax.tree.leaves(delay(0).init({"w": jnp.ones(3)})) == []


REDUCERS = {
    "power_sgd 1": power_sgd(1),
    "power_sgd 4": power_sgd(4),
    "power_sgd 16": power_sgd(16, warm_start=False),
    "dgc": dgc(density=0.1),
    "dgc clip": dgc(density=0.1, clip_norm=1.0, nesterov=True),
    "demo": demo(k=4),
    "demo mean": demo(k=2, chunk=3, sign=False),
    "adasum": adasum(),
    "delay": optax.chain(all_reduce(), delay(2)),
    "skip_nonfinite": skip_nonfinite(power_sgd(2)),
}


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", REDUCERS)
def test_B4_any_shape_and_type(name, dtype):
    g = {str(s): gradients(s, 3, 4).astype(dtype) for s in SHAPES}
    outs, _ = trajectory(REDUCERS[name], LANES3, g)
    for key, value in outs.items():
        assert value.shape == g[key].shape and value.dtype == dtype
        assert np.isfinite(value.astype(np.float32)).all()
        assert all(np.array_equal(value[0], v) for v in value)


@pytest.mark.parametrize("workers", [1, 3, 4, 64])
def test_K4_bytes_equal_the_formulas(workers):
    shapes, gathers = [(64, 96), (3, 3, 8, 16), (96,), (4, 4)], workers - 1
    raw = [(96,), (4, 4)]
    for iterations in (1, 2):
        thin = [(64, 96), (72, 16)]
        found = sent(power_sgd(4, iterations=iterations), shapes, workers).bytes
        products = [(4 * iterations, m + n) for m, n in thin]
        assert found == pytest.approx(dense(raw + products, workers))
    found = sent(dgc(density=0.01), shapes, workers).bytes
    pairs = [(61, 6144), (12, 1152), (1, 16)]
    want = sum(gathers * (4 * k + index_bytes(k, n)) for k, n in pairs)
    assert found == pytest.approx(want + dense([(96,)], workers))
    found = sent(demo(chunk=16, k=8), shapes, workers).bytes
    # Blocks of 16 x 16, and of 12 x 16 in the 72 x 16 of the convolution.
    pairs = [(8 * 24, 6144), (8 * 6, 1152), (8, 16)]
    want = sum(gathers * (4 * k + index_bytes(k, n)) for k, n in pairs)
    assert found == pytest.approx(want + dense([(96,)], workers))
    if workers in (4, 64):
        found = sent(adasum(), shapes, workers).bytes
        whole = 4 * sum(int(np.prod(s)) for s in shapes)
        assert found == pytest.approx(np.log2(workers) * whole)
    safe = sent(skip_nonfinite(all_reduce()), shapes, workers).bytes
    assert safe == pytest.approx(dense([*shapes, (1,)], workers))


def test_B5_what_would_grow_is_sent_raw():
    for reducer in (power_sgd(4), dgc(density=1.0), demo(k=16)):
        found = sent(reducer, [(4, 4)], 3)
        assert found.bytes == dense([(4, 4)], 3)
        assert [m.collective for m in found.messages] == ["all-reduce"]


@pytest.mark.parametrize(
    "reducer", [power_sgd(), dgc(momentum=0.0), demo(sign=False), demo(decay=0.0)]
)
def test_B12_biases_and_scalars_alone(reducer):
    g = {"a": gradients((), 3), "b": gradients((7,), 3)}
    outs, _ = trajectory(reducer, LANES3, g)
    mean, _ = trajectory(all_reduce(), LANES3, g)
    signs = np.isin(outs["b"], (-1, 1)).all()
    for k in g:
        np.testing.assert_array_equal(outs[k], np.sign(mean[k]) if signs else mean[k])
    found = sent(reducer, [(), (7,)], 3)
    assert found.bytes == dense([(), (7,)], 3)
    assert all(m.bytes > 0 for m in found.messages)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_B1_what_is_sent_and_kept_is_what_came(dtype):
    g = gradients((16, 12), 4, 20).astype(dtype)
    wide = g.astype(np.float64)
    outs, states = trajectory(power_sgd(2), LANES4, {"w": g})
    error = states.error["['w']"].astype(np.float64)
    before = np.concatenate([np.zeros_like(error[:, :1]), error[:, :-1]], 1)
    sums = outs["w"].astype(np.float64) + error
    np.testing.assert_allclose(sums, wide + before, atol=2e-5)
    outs, states = trajectory(dgc(density=0.05, momentum=0.0), LANES4, {"w": g})
    left = states.accumulated["['w']"][:, -1].astype(np.float64).mean(0)
    total = outs["w"][0].astype(np.float64).sum(0)
    np.testing.assert_allclose(total + left, wide.sum(1).mean(0), atol=1e-5)


def test_momentum_of_half_precision_gradients_is_kept_in_float32():
    """A decay of 0.999 is 1 in bfloat16, and 1 + 0.001 is 1."""
    reducer = local_momentum(0.999, dampening=0.999)
    g = {"w": jnp.ones((2, 3), jnp.bfloat16)}
    state = reducer.init(g)
    for _ in range(200):
        out, state = reducer.update(g, state)
    assert out["w"].dtype == jnp.bfloat16
    np.testing.assert_allclose(out["w"].astype(np.float32), 1 - 0.999**200, rtol=4e-3)


@pytest.mark.parametrize(
    "reducer",
    [power_sgd(2), dgc(density=0.1), demo(k=4), demo(k=4, sign=False, chunk=4)],
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_leaves_the_state(reducer, value):
    g = gradients((8, 6), 3, 6)
    g[1, 2, 4, 3] = value  # one entry of one worker in one step
    outs, states = trajectory(reducer, LANES3, {"w": g})
    good = np.isfinite(outs["w"]).all((0, 2, 3))
    assert good.tolist() == [True, True, False, True, True, True]
    for leaf in jax.tree.leaves(states):
        if leaf.dtype == np.float32:
            np.testing.assert_array_equal(leaf[:, 2], leaf[:, 1])
            assert np.isfinite(leaf).all()
    assert all(np.array_equal(outs["w"][0, 3:], o[3:]) for o in outs["w"])


@pytest.mark.parametrize("place", [LANES4, ("shard_map", 2, 2), ("pmap", 4, 1)])
def test_G1_all_workers_skip_together(place):
    g = {"w": gradients((8, 6), 4, 5), "b": gradients((3,), 4, 5)}
    g["b"][3, 2, 1] = np.nan
    inner = optax.chain(error_feedback(one_bit()), optax.sgd(0.1, 0.9))
    outs, states = trajectory(skip_nonfinite(inner), place, g)
    for k in g:
        assert not outs[k][:, 2].any() and outs[k][:, [0, 1, 3, 4]].all()
    for leaf in jax.tree.leaves(states.inner):
        np.testing.assert_array_equal(leaf[:, 2], leaf[:, 1])
        assert np.isfinite(leaf).all()
    assert states.skipped.tolist() == [[0, 0, 1, 1, 1]] * 4
    assert states.own[:, -1].tolist() == [0, 0, 0, 1]
    # As if the step had not been.
    less = {k: np.delete(v, 2, axis=1) for k, v in g.items()}
    want, _ = trajectory(inner, place, less)
    for k in g:
        np.testing.assert_allclose(np.delete(outs[k], 2, 1), want[k], atol=1e-6)


@pytest.mark.parametrize("reducer", [power_sgd(1), dgc(), demo()])
def test_B10_state_of_another_model_is_refused(reducer):
    state = reducer.init({"w": jnp.zeros((6, 5))})
    with pytest.raises(ValueError, match=r"\['v'\].*another model"):
        reducer.update({"v": jnp.zeros((6, 5))}, state)
    with pytest.raises(ValueError, match=r"shape \(6, 6\)"):
        reducer.update({"w": jnp.zeros((6, 6))}, state)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: power_sgd(0), "rank=0"),
        (lambda: power_sgd(iterations=0), "iterations=0"),
        (lambda: power_sgd(min_compression=0.5), "min_compression=0.5"),
        (lambda: dgc(density=0), "density=0"),
        (lambda: dgc(density=1.5), "density=1.5"),
        (lambda: dgc(momentum=1.0), "momentum=1.0"),
        (lambda: dgc(clip_norm=0.0), "clip_norm=0.0"),
        (lambda: dgc(min_size=-1), "min_size=-1"),
        (lambda: demo(decay=1.1), "decay=1.1"),
        (lambda: demo(chunk=0), "chunk=0"),
        (lambda: demo(k=0), "k=0"),
        (lambda: delay(-1), "k=-1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
