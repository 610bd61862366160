"""Methods that start uncompressed, where more than compression is at work."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reducing import PLACES, gradients, trajectory
from test_comm import over
from tiny import tiny

import parsgd
from parsgd import compressors, reducers
from parsgd.errors import UserError
from parsgd.reducers.dense_start import dense, works_dense

CODE = compressors.top_k(density=0.1)
MOMENTUM = reducers.local_momentum(0.9, nesterov=True)
# Reducers without and with the momentum before them.
COMPRESSED = {
    "none": parsgd.compressed_all_reduce(CODE),
    "ef": parsgd.error_feedback(CODE),
    "ef21": parsgd.ef21(CODE),
    "power_sgd": reducers.power_sgd(1),
}


def momenta(g, decay=0.9):
    """Nesterov's form of each worker's momentum, of gradients ``[T, W, ...]``."""
    m, out = np.zeros_like(g[0]), []
    for x in g:
        m = decay * m + x
        out.append(decay * m + x)
    return np.stack(out)


@pytest.mark.parametrize("place", PLACES, ids=lambda p: f"{p[0]}-{p[1]}x{p[2]}")
@pytest.mark.parametrize("name", COMPRESSED)
def test_dense_steps_average_momentum_and_owe_nothing(name, place):
    reducer = optax.chain(MOMENTUM, COMPRESSED[name])
    assert works_dense(reducer)
    workers = place[1] * place[2]
    g = gradients((12, 8), workers, 4)
    outs, (_, state) = trajectory(dense(reducer), place, {"w": g})
    want = momenta(np.swapaxes(g, 0, 1)).mean(1)
    for w in range(workers):
        np.testing.assert_allclose(outs["w"][w], want, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(outs["w"][w], outs["w"][0])
    if name in ("ef", "power_sgd"):
        assert not any(np.any(error) for error in state.error.values())


@pytest.mark.parametrize("place", PLACES, ids=lambda p: f"{p[0]}-{p[1]}x{p[2]}")
def test_ef21_starts_from_a_full_gradient_as_in_its_paper(place):
    reducer = parsgd.ef21(CODE)
    workers = place[1] * place[2]
    g = gradients((12, 8), workers, 5)

    def worker(g):
        out, state = dense(reducer).update({"w": g[0]}, reducer.init({"w": g[0]}))
        outs = [out["w"]]
        for x in g[1:]:
            out, state = reducer.update({"w": x}, state)
            outs.append(out["w"])
        return outs

    outs = over(worker, place, g)
    h = g[:, 0].astype(np.float64)
    k = round(0.1 * h[0].size)
    for t, out in enumerate(outs):
        if t:
            change = g[:, t] - h
            for w in range(workers):
                largest = np.argsort(-np.abs(change[w]).ravel())[:k]
                h[w].ravel()[largest] += change[w].ravel()[largest]
        np.testing.assert_allclose(out[0], h.mean(0), atol=1e-5)


@pytest.mark.parametrize("name", ["ef", "ef21"])
def test_what_stands_before_the_compression_works_in_dense_steps(name):
    clipped = optax.chain(reducers.clip(1.0), COMPRESSED[name])
    assert works_dense(clipped)
    g = gradients((12, 8), 3, 4)
    outs, (_, state) = trajectory(dense(clipped), ("vmap", 1, 3), {"w": g})
    short = g / np.linalg.norm(g, axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(outs["w"][0], short.mean(0), atol=1e-6)
    if name == "ef21":
        np.testing.assert_allclose(state.estimate["['w']"], short, atol=1e-6)


def test_a_step_that_is_not_finite_leaves_the_estimate():
    reducer = dense(parsgd.ef21(CODE))
    g = gradients((12, 8), 3, 3)
    g[1, 1, 2, 2] = np.inf
    outs, state = trajectory(reducer, ("vmap", 1, 3), {"w": g})
    assert not np.isfinite(outs["w"][:, 1]).all(axis=(1, 2)).any()
    for leaf in jax.tree.leaves((state.estimate, state.mean)):
        np.testing.assert_array_equal(leaf[:, 1], leaf[:, 0])
        assert np.isfinite(leaf).all() and not np.array_equal(leaf[:, 2], leaf[:, 1])


@pytest.mark.parametrize("feedback", COMPRESSED)
@pytest.mark.parametrize("momentum", [True, False])
def test_until_the_start_it_is_the_dense_method(feedback, momentum):
    """Clipped before the average, which each worker does to its own gradient."""
    reducer, plain = COMPRESSED[feedback], parsgd.all_reduce()
    if momentum:
        reducer, plain = (optax.chain(MOMENTUM, x) for x in (reducer, plain))
    late = parsgd.compressed_sgd(
        optax.sgd(0.1), reducer=reducer, start_step=5, clip_before=0.3
    )
    full = parsgd.data_parallel(optax.sgd(0.1), reducer=plain, clip_before=0.3)
    ends = {}
    for rounds in (5, 9):
        for name, method in (("late", late), ("dense", full)):
            run = parsgd.fit(
                tiny(), method, workers=3, worker_batch=4, rounds=rounds, evaluations=1
            )
            ends[name, rounds] = run.readout["w1"]
    np.testing.assert_array_equal(ends["late", 5], ends["dense", 5])
    assert not np.allclose(ends["late", 9], ends["dense", 9], atol=1e-6)


def test_a_reducer_may_take_its_own_models_parameters_only():
    """Such as a mask of its leaves: what the reducer does is found with them."""
    mask = dict.fromkeys(("w1", "b1", "w2", "b2"), True)
    clipped = optax.masked(optax.clip(0.01), mask)
    ends = []
    for start, reducer in ((4, parsgd.error_feedback(CODE)), (0, parsgd.all_reduce())):
        chain = optax.chain(clipped, reducer)
        method = parsgd.compressed_sgd(optax.sgd(0.1), reducer=chain, start_step=start)
        run = parsgd.fit(tiny(), method, workers=3, worker_batch=4, rounds=4)
        ends.append(run.readout["w1"])
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda chain: reducers.skip_nonfinite(optax.chain(*chain)),
        lambda chain: optax.named_chain(("clip", chain[0]), ("send", chain[1])),
        lambda chain: optax.partition(
            {"all": optax.chain(*chain)}, dict.fromkeys(("w1", "b1", "w2", "b2"), "all")
        ),
    ],
    ids=["skip_nonfinite", "named_chain", "partition"],
)
@pytest.mark.parametrize("feedback", ["ef", "ef21"])
def test_what_wraps_a_reducer_works_from_the_first_step(wrapped, feedback):
    ends = []
    for start, reducer in ((3, COMPRESSED[feedback]), (0, parsgd.all_reduce())):
        method = parsgd.compressed_sgd(
            optax.sgd(0.1),
            reducer=wrapped((reducers.clip(0.05), reducer)),
            start_step=start,
        )
        run = parsgd.fit(tiny(), method, workers=3, worker_batch=4, rounds=3)
        ends.append(run.readout["w1"])
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize(
    "reducer",
    [
        reducers.demo(),
        reducers.dgc(),
        optax.chain(reducers.local_momentum(), reducers.majority_vote()),
        optax.chain(reducers.clip(1.0), reducers.majority_vote()),
        reducers.skip_nonfinite(
            optax.chain(reducers.clip(1.0), reducers.majority_vote())
        ),
        optax.named_chain(
            ("clip", reducers.clip(1.0)), ("vote", reducers.majority_vote())
        ),
        optax.MultiSteps(COMPRESSED["ef"], 2).gradient_transformation(),
        optax.partition(
            {"sent": COMPRESSED["ef"], "voted": reducers.majority_vote()},
            {"w1": "sent", "w2": "sent", "b1": "voted", "b2": "voted"},
        ),
    ],
    ids=[
        "demo",
        "dgc",
        "momentum",
        "clipped",
        "skipping",
        "named",
        "steps",
        "a part of it",
    ],
)
def test_a_dense_start_is_refused_where_it_would_lack_momentum(reducer):
    method = parsgd.compressed_sgd(optax.sgd(0.1), reducer=reducer, start_step=2)
    with pytest.raises(UserError, match=r"start_step=2 with a reducer that does more"):
        parsgd.fit(tiny(), method, worker_batch=8, rounds=6)


class Heavy(NamedTuple):
    """A reducer's state that holds momentum."""

    m: Any


def heavy():
    """Momentum of its own, which is averaged; it knows what a dense step is."""

    def update(updates, state, params=None, *, dense=False, **_):
        m = jax.tree.map(lambda m, g: 0.5 * m + g, state.m, updates)
        sent = m if dense else jax.tree.map(jnp.sign, m)
        return parsgd.comm.mean(sent), Heavy(m)

    init = lambda params: Heavy(jax.tree.map(jnp.zeros_like, params))
    return optax.GradientTransformationExtraArgs(init, update)


def test_a_reducer_with_momentum_that_knows_dense_steps_works_in_them():
    late = parsgd.compressed_sgd(optax.sgd(0.1), reducer=heavy(), start_step=4)
    full = parsgd.sync_sgd(optax.sgd(0.1, 0.5))
    sizes = {"workers": 3, "worker_batch": 4, "rounds": 4}
    late, full = (parsgd.fit(tiny(), x, **sizes).readout["w1"] for x in (late, full))
    np.testing.assert_allclose(late, full, rtol=1e-5)


def test_a_reducer_whose_state_is_like_the_parameters_waits():
    """A dict of arrays holds no other reducer, and the first steps leave it alone."""

    def update(updates, state, params=None):
        return parsgd.comm.mean(updates), jax.tree.map(jnp.ones_like, state)

    init = lambda params: jax.tree.map(jnp.zeros_like, params)
    own = optax.GradientTransformation(init, update)
    method = parsgd.compressed_sgd(optax.sgd(0.1), reducer=own, start_step=2)
    run = parsgd.fit(tiny(), method, workers=3, worker_batch=4, rounds=4)
    assert run.status == "completed"
