"""Reducers against their oracles, under several placements, and their identities."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reducer_oracles as oracles
from jax import lax
from test_comm import over

from parsgd import traffic
from parsgd.compressors import one_bit
from parsgd.compressors.index_packing import index_bytes
from parsgd.reducers import (
    adasum,
    all_reduce,
    delay,
    demo,
    dgc,
    error_feedback,
    power_sgd,
    skip_nonfinite,
)

LANES3, LANES4 = ("vmap", 1, 3), ("vmap", 1, 4)
PLACES = [LANES3, LANES4, ("shard_map", 3, 1), ("shard_map", 2, 2)]
SHAPES = [(), (1,), (0, 4), (7,), (2, 3), (3, 2), (3, 3, 8, 8)]


def trajectory(reducer, place, grads):
    """What every worker gets in every step, and its last state.

    ``grads`` is a dict of ``[W, T, ...]``.
    """

    def worker(grads):
        state = reducer.init(jax.tree.map(lambda g: g[0], grads))

        def step(state, g):
            out, state = reducer.update(g, state)
            return state, (out, state)

        return lax.scan(step, state, grads)[1]

    return over(worker, place, grads)


def gradients(shape, workers, steps=6, seed=0):
    g = np.random.default_rng(seed).normal(size=(workers, steps, *shape))
    return g.astype(np.float32)


def compare(reducer, place, oracle, kept, shape=(12, 8), steps=6, atol=2e-5):
    """Outputs and the state ``kept(state)`` of every step, against the oracle's."""
    workers = place[1] * place[2]
    g = gradients(shape, workers, steps)
    outs, states = trajectory(reducer, place, {"w": g})
    theirs = list(oracle(np.swapaxes(g, 0, 1).astype(np.float64)))
    for t, (want, own) in enumerate(theirs):
        for w in range(workers):
            np.testing.assert_allclose(outs["w"][w, t], want, atol=atol)
            np.testing.assert_array_equal(outs["w"][w, t], outs["w"][0, t])
            np.testing.assert_allclose(kept(states)[w, t], own[w], atol=atol)


def first_q(rank, n, seed=0, step=0):
    """The Q that `power_sgd` starts a single leaf from."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), 0)
    return np.asarray(jax.random.normal(key, (n, rank)), np.float64)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (12, 8)),
        ({"iterations": 3}, (8, 12)),
        ({"warm_start": False}, (12, 8)),
        ({"feedback": False}, (3, 4, 8)),
    ],
)
def test_power_sgd_follows_its_oracle(options, shape, place):
    q = first_q(2, shape[-1])
    if not options.get("warm_start", True):
        q = [first_q(2, shape[-1], step=t) for t in range(6)]

    def error(state):
        return state.error.get("['w']", np.zeros((4, 6, *shape)))

    compare(
        power_sgd(2, **options), place,
        lambda g: oracles.power_sgd(g, q, **options), error, shape, atol=2e-4,
    )  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "options",
    [
        {"density": 0.1, "momentum": 0.9},
        {"density": 0.05, "momentum": 0.9, "masking": False},
        {"density": 0.1, "momentum": 0.7, "nesterov": True},
        {"density": 0.1, "momentum": 0.9, "clip": 4.0},
    ],
)
def test_dgc_follows_its_oracle(options, place):
    ours = dict(options)
    renamed = {"masking": "momentum_masking", "clip": "clip_norm"}
    for old, new in renamed.items():
        if old in ours:
            ours[new] = ours.pop(old)
    compare(
        dgc(**ours), place, lambda g: oracles.dgc(g, **options),
        lambda s: s.accumulated["['w']"], steps=12,
    )  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("shape", "side", "sign"),
    [((12, 8), (6, 8), True), ((12, 8), (6, 8), False), ((3, 4, 14), (6, 7), False)],
)
def test_demo_follows_its_oracle(shape, side, sign, place):
    compare(
        demo(decay=0.9, chunk=8, k=5, sign=sign, learning_rate=0.3), place,
        lambda g: oracles.demo(g, lr=0.3, decay=0.9, side=side, k=5, sign=sign),
        lambda s: s.momentum["['w']"], shape, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize(
    "place", [*PLACES, ("vmap", 1, 5), ("vmap", 1, 8), ("shard_map", 3, 2)]
)
@pytest.mark.parametrize("per_leaf", [True, False])
def test_adasum_follows_its_oracle(place, per_leaf):
    workers = place[1] * place[2]
    g = {"a": gradients((4, 3), workers, 1), "b": 3 * gradients((5,), workers, 1, 1)}
    outs, _ = trajectory(adasum(per_leaf=per_leaf), place, g)
    flat = {k: v.reshape(workers, -1).astype(np.float64) for k, v in g.items()}
    if per_leaf:
        want = {k: oracles.adasum(list(v)) for k, v in flat.items()}
    else:
        whole = oracles.adasum(list(np.concatenate([flat["a"], flat["b"]], 1)))
        want = {"a": whole[:12], "b": whole[12:]}
    for k, value in outs.items():
        for w in range(workers):
            np.testing.assert_allclose(value[w].reshape(-1), want[k], atol=1e-5)
            np.testing.assert_array_equal(value[w], value[0])


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8])
def test_adasum_averages_what_agrees_and_adds_what_does_not(workers):
    same = np.tile(gradients((6,), 1, 1), (workers, 1, 1))
    outs, _ = trajectory(adasum(), ("vmap", 1, workers), {"w": same})
    np.testing.assert_allclose(outs["w"], same, rtol=1e-6)
    apart = 2 * np.eye(workers, dtype=np.float32)[:, None]
    outs, _ = trajectory(adasum(), ("vmap", 1, workers), {"w": apart})
    np.testing.assert_allclose(outs["w"], 2 * np.ones_like(apart), rtol=1e-6)
    # A worker without a gradient changes nothing.
    apart[0] = 0
    outs, _ = trajectory(adasum(), ("vmap", 1, workers), {"w": apart})
    np.testing.assert_array_equal(outs["w"][0], apart.sum(0))


@pytest.mark.parametrize("k", [0, 1, 3])
def test_delay_hands_on_what_came_k_steps_ago(k):
    g = gradients((2, 3), 4, 7)
    outs, _ = trajectory(optax.chain(all_reduce(), delay(k)), LANES4, {"w": g})
    direct, _ = trajectory(all_reduce(), LANES4, {"w": g})
    np.testing.assert_array_equal(outs["w"][:, k:], direct["w"][:, : 7 - k])
    assert not outs["w"][:, :k].any()


def test_delay_of_nothing_is_nothing():
    assert jax.tree.leaves(delay(0).init({"w": jnp.ones(3)})) == []


def test_B3_power_sgd_recovers_after_zero_gradients():
    rng = np.random.default_rng(0)
    m = rng.normal(size=(8, 6)).astype(np.float32)
    # An orthonormal basis of zero must not be one that the matrix has nothing in.
    hidden = m.copy()
    hidden[:4] = 0
    for matrix in (m, hidden):
        g = np.stack([matrix, 0 * matrix, *[matrix] * 4])[None]
        plain = power_sgd(2, feedback=False)
        outs, _ = trajectory(plain, ("vmap", 1, 1), {"w": g})
        norms = np.linalg.norm(outs["w"][0], axis=(1, 2))
        assert np.isfinite(outs["w"]).all() and norms[1] == 0
        assert (norms[2:] > 0.5 * norms[0]).all(), norms
        # With feedback the error of all steps together stays that of one.
        outs, states = trajectory(power_sgd(2), ("vmap", 1, 1), {"w": g})
        left = states.error["['w']"][0, -1]
        np.testing.assert_allclose(outs["w"][0].sum(0) + left, g[0].sum(0), atol=1e-4)
        assert np.linalg.norm(left) < 3 * np.linalg.norm(matrix)


@pytest.mark.parametrize("scale", [1e-25, 1e15])
def test_power_sgd_at_any_scale(scale):
    """A Q of the gradient's scale would under- or overflow in the next product."""
    g = gradients((8, 6), 3)
    outs, _ = trajectory(power_sgd(2), LANES3, {"w": g})
    scaled, _ = trajectory(power_sgd(2), LANES3, {"w": np.float32(scale) * g})
    np.testing.assert_allclose(
        scaled["w"] / scale, outs["w"], atol=1e-4 * np.abs(outs["w"]).max()
    )


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


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("rank", [1, 4, 16])
def test_B4_B5_full_rank_is_the_exact_mean(rank, dtype):
    shapes = [*SHAPES, (4, 4), (5, 40)]
    g = {str(s): gradients(s, 3, 4).astype(dtype) for s in shapes}
    outs, states = trajectory(power_sgd(rank), LANES3, g)
    mean, _ = trajectory(all_reduce(), LANES3, g)
    for shape in shapes:
        rows = int(np.prod(shape[:-1]))
        thin = len(shape) > 1 and rank * (rows + shape[-1]) < rows * shape[-1]
        same = np.array_equal(outs[str(shape)], mean[str(shape)])
        assert same != thin, (shape, rank)
        assert (f"['{shape}']" in states.error) == thin


def sent(reducer, shapes, workers):
    like = {str(s): jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes}

    def step(grads):
        return reducer.update(grads, reducer.init(grads))[0]

    return traffic.trace(step, workers, like)


def dense(shapes, workers):
    return sum(8 * (workers - 1) / workers * int(np.prod(s)) for s in shapes)


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


def test_B13_the_random_start_is_shared_and_new_in_every_step():
    g = np.repeat(gradients((8, 6), 4, 1), 5, axis=1)  # the same in every step
    for place in (LANES4, ("shard_map", 2, 2)):
        fresh = power_sgd(1, warm_start=False, feedback=False)
        outs, _ = trajectory(fresh, place, {"w": g})
        for a, b in itertools.combinations(outs["w"][0], 2):
            assert np.abs(a - b).max() > 1e-3
        outs, states = trajectory(power_sgd(1), place, {"w": g})
        for q in states.q["['w']"]:
            np.testing.assert_array_equal(q, states.q["['w']"][0])
    firsts = [
        power_sgd(1, seed=s).init({"a": jnp.ones((9, 9)), "b": jnp.ones((9, 9))}).q
        for s in (0, 1)
    ]
    starts = [np.asarray(q) for tree in firsts for q in tree.values()]
    assert len({q.tobytes() for q in starts}) == 4


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
    if dtype == np.float32:
        total = outs["w"][0].astype(np.float64).sum(0)
        np.testing.assert_allclose(total + left, wide.sum(1).mean(0), atol=1e-5)


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


@pytest.mark.parametrize("workers", [1, 4])
def test_dgc_at_density_1_is_sgd(workers):
    place = ("vmap", 1, workers)
    g = gradients((5, 4), workers, 8)
    plain, _ = trajectory(all_reduce(), place, {"w": g})
    outs, _ = trajectory(dgc(density=1.0), place, {"w": g})
    np.testing.assert_array_equal(outs["w"], plain["w"])
    heavy = optax.chain(all_reduce(), optax.trace(0.9))
    plain, _ = trajectory(heavy, place, {"w": g})
    outs, _ = trajectory(dgc(density=1.0, momentum_masking=False), place, {"w": g})
    if workers == 1:
        np.testing.assert_array_equal(outs["w"], plain["w"])
    np.testing.assert_allclose(outs["w"], plain["w"], atol=1e-5)
    nesterov = optax.chain(all_reduce(), optax.trace(0.9, nesterov=True))
    plain, _ = trajectory(nesterov, place, {"w": g})
    options = {"density": 1.0, "momentum_masking": False, "nesterov": True}
    outs, _ = trajectory(dgc(**options), place, {"w": g})
    np.testing.assert_allclose(outs["w"], plain["w"], atol=1e-5)


def test_dgc_gives_averaged_leaves_momentum():
    g = gradients((7,), 4)
    outs, _ = trajectory(dgc(momentum=0.8), LANES4, {"b": g})
    heavy = optax.chain(all_reduce(), optax.trace(0.8))
    plain, _ = trajectory(heavy, LANES4, {"b": g})
    np.testing.assert_allclose(outs["b"], plain["b"], rtol=1e-6)


def test_demo_that_sends_all_without_decay_is_sgd():
    g = gradients((6, 4), 4)
    plain, _ = trajectory(all_reduce(), LANES4, {"w": g})
    whole, _ = trajectory(demo(k=100, sign=False), LANES4, {"w": g})
    np.testing.assert_array_equal(whole["w"], plain["w"])


def test_demo_follows_a_schedule():
    rate = optax.linear_schedule(1.0, 0.0, 3)
    g = np.ones((1, 4, 5), np.float32)
    one = demo(learning_rate=rate, sign=False)
    outs, _ = trajectory(one, ("vmap", 1, 1), {"b": g})
    np.testing.assert_allclose(outs["b"][0, :, 0], [1, 2 / 3, 1 / 3, 0], atol=1e-6)


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
