"""The two-sided exchange, averages of payloads, and what the exchange refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reducer_oracles as oracles
from reducing import LANES3, PLACES, gradients, sent, trajectory
from test_comm import over
from test_placements import engine
from tiny import tiny

import parsgd
from parsgd import comm
from parsgd.compressors import (
    bf16,
    fp16,
    linear_8bit,
    natural,
    one_bit,
    payload_bytes,
    qsgd,
    random_k,
    sign,
    threshold,
    top_k,
)
from parsgd.reducers import compressed_all_reduce, ef21, error_feedback
from parsgd.reducers.decoding import mean_of_decoded
from parsgd.reducers.exchange import exchange

LEAF = one_bit(levels="leaf")


@pytest.mark.parametrize("workers", [1, 3, 20])  # in the program, and in a loop
@pytest.mark.parametrize(
    "code", [top_k(density=0.1), threshold(tau=1.0), top_k(density=1.0), LEAF]
)
def test_codes_that_add_average_what_they_decode_to(code, workers):
    v = jnp.asarray(gradients((20, 15), workers, 1)[:, 0])

    @jax.jit
    def both(v):
        payloads = jax.vmap(lambda x: code.encode(x, None))(v)
        each = jax.vmap(lambda p: code.decode(p, v[0], None))(payloads)
        return mean_of_decoded(code, payloads, v[0], None), each

    got, each = both(v)
    np.testing.assert_allclose(got, np.mean(each, 0), rtol=1e-5, atol=1e-6)
    assert np.count_nonzero(got) == np.count_nonzero(np.any(each, 0))


@pytest.mark.parametrize(
    "place",
    [("vmap", 1, 1), *PLACES, ("vmap", 1, 7), ("pmap", 2, 2), ("debug", 1, 3)],
    ids=lambda p: f"{p[0]}-{p[1]}x{p[2]}",
)
@pytest.mark.parametrize("levels", ["leaf", "column"])
def test_two_sided_follows_its_oracle(place, levels):
    """Shapes that W does not divide, and (40, 2): some workers own no column."""
    workers, steps = place[1] * place[2], 3
    shapes = {"a": (40, 2), "c": (9, 5, 13)}
    g = {k: gradients(s, workers, steps) for k, s in shapes.items()}
    reducer = error_feedback(one_bit(levels=levels), two_sided=True)
    outs, states = trajectory(reducer, place, g)
    for k, shape in shapes.items():
        by_column = levels == "column"
        oracle = oracles.OneBitAllReduce(shape, workers, by_column=by_column)
        owed = states.exchange.owner_error[f"['{k}']"]
        error = states.error[f"['{k}']"]
        for t in range(steps):
            want = oracle(list(g[k][:, t].astype(np.float64)), True)
            for w in range(workers):
                np.testing.assert_allclose(outs[k][w, t], want, atol=1e-5)
                np.testing.assert_array_equal(outs[k][w, t], outs[k][0, t])
                np.testing.assert_allclose(error[w, t], oracle.errors[w], atol=1e-5)
                missing = owed.shape[-1] - oracle.owed[w].shape[1]
                want_owed = np.pad(oracle.owed[w], ((0, 0), (0, missing)))
                np.testing.assert_allclose(owed[w, t], want_owed, atol=1e-5)


@pytest.mark.parametrize("workers", [3, 4, 7])
@pytest.mark.parametrize("code", [one_bit(), LEAF, linear_8bit(), top_k(density=0.1)])
def test_K4_two_sided_sends_two_payloads_of_a_share(code, workers):
    found = sent(error_feedback(code, two_sided=True), [(50, 9), (9,)], workers)
    stripe = jax.ShapeDtypeStruct((50, -(-9 // workers)), jnp.float32)
    # All stripes but the own one go out, and the own average goes to all others.
    want = 2 * (workers - 1) * payload_bytes(code, stripe)
    assert found.bytes == pytest.approx(want + 2 * (workers - 1) / workers * 36)


def test_two_sided_draws_the_same_numbers_from_the_same_seed():
    g = {"w": gradients((20, 9), 3, 2)}
    options = {"levels": 15, "norm": "max"}
    runs = [
        trajectory(
            error_feedback(qsgd(**options), two_sided=True, seed=seed), LANES3, g
        )
        for seed in (0, 0, 1)
    ]
    for a, b in zip(*(jax.tree.leaves(run) for run in runs[:2]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (runs[0][0]["w"] != runs[2][0]["w"]).any()
    for out in runs[0][0]["w"]:
        np.testing.assert_array_equal(out, runs[0][0]["w"][0])


def test_two_sided_trains_in_bfloat16():
    run = parsgd.fit(
        tiny(48, dtype=jnp.bfloat16),
        parsgd.one_bit_sgd(optax.sgd(0.1), levels="leaf", two_sided=True),
        workers=3, worker_batch=4, rounds=4, evaluations=1, placement="vmap",
    )  # fmt: skip
    assert run.status == "completed"
    assert run.readout["w1"].dtype == jnp.bfloat16
    assert run.history[-1]["train_loss"] < run.history[0]["train_loss"]


@pytest.mark.parametrize("reducer", [error_feedback, compressed_all_reduce])
def test_two_sided_residuals_survive_nan_and_what_follows_is_as_if_it_had_not_been(
    reducer,
):
    g = gradients((40, 9), 3, 5)
    g[1, 2, 5, 5] = np.nan  # one entry of one worker
    reducer = reducer(LEAF, two_sided=True)
    outs, states = trajectory(reducer, LANES3, {"w": g})
    finite = np.isfinite(outs["w"]).all(axis=(0, 2, 3))
    assert finite.tolist() == [True, True, False, True, True]
    exchanged = getattr(states, "exchange", states)
    for leaf in jax.tree.leaves(exchanged.owner_error):
        np.testing.assert_array_equal(leaf[:, 2], leaf[:, 1])
    if exchanged is not states:
        for leaf in jax.tree.leaves(states.error):
            np.testing.assert_array_equal(leaf[:, 2], leaf[:, 1])
    less, _ = trajectory(reducer, LANES3, {"w": np.delete(g, 2, axis=1)})
    np.testing.assert_array_equal(np.delete(outs["w"], 2, 1), less["w"])


@pytest.mark.parametrize("two_sided", [False, True])
def test_B14_two_programs_and_a_residual_that_starts_at_zero(two_sided):
    dense, _ = engine("sync_sgd", 4, "vmap")
    options = {"levels": "leaf", "two_sided": two_sided, "start_step": 3}
    algorithm = parsgd.one_bit_sgd(optax.sgd(0.1, 0.9), **options)
    run, order = engine(algorithm, 4, "vmap")
    index, weight = order.indices(0, 3)
    index = index.reshape(3, 1, 4, 4).transpose(2, 0, 1, 3)
    states = []
    for which in (dense, run):
        state, *_ = which.run(which.init(jax.random.key(0)), 0, index, weight, 3)
        states.append(state)
    jax.tree.map(np.testing.assert_array_equal, states[0].params, states[1].params)
    (feedback, _) = states[1].strategy
    kept = jax.tree.leaves((feedback.error, feedback.exchange.owner_error))
    assert kept and not any(np.asarray(x).any() for x in kept)
    before = len(run._programs)
    state, *_ = run.run(states[1], 1, index, weight, 3)
    run.run(state, 1, index, weight, 3)
    assert (before, len(run._programs)) == (1, 2)


@pytest.mark.parametrize("start", [0, 2, 9])
def test_B14_any_start_step_is_valid(start):
    strategy = parsgd.one_bit_sgd(optax.sgd(0.1), two_sided=True, start_step=start)
    run = parsgd.fit(
        tiny(24), strategy, workers=3, worker_batch=2, rounds=4, evaluations=1,
        placement="vmap",
    )  # fmt: skip
    assert run.status == "completed" and run.summary["steps"] == 4


@pytest.mark.parametrize(
    "reducer",
    [
        error_feedback(LEAF),
        error_feedback(LEAF, two_sided=True),
        compressed_all_reduce(LEAF, two_sided=True),
        ef21(LEAF),
    ],
)
def test_B10_renamed_resized_and_reordered_leaves_are_named(reducer):
    a, b = jnp.zeros((6, 5)), jnp.zeros((4, 9))
    state = reducer.init({"a": a, "b": b})
    for other, path in (
        ({"a": a, "c": b}, "b"),  # a residual without a leaf
        ({"a": a, "b": b, "c": b}, "c"),  # a leaf without a residual
        ({"a": a}, "b"),
        ({"a": a, "b": jnp.zeros((4, 12))}, "b"),
        ({"a": b, "b": a}, "a"),
    ):
        with pytest.raises(ValueError, match=rf"\['{path}'\].*another model"):
            reducer.update(other, state)
    listed = reducer.init([a, b])
    with pytest.raises(ValueError, match=r"\[0\].*another model"):
        reducer.update([b, a], listed)
    reducer.update({"b": b, "a": a}, state)  # a dict has no order


@pytest.mark.parametrize(
    "code", [bf16(), fp16(), natural(rounding="nearest")], ids=lambda code: code.name
)
def test_one_bucket_gives_the_same_where_entries_are_coded_alone(code):
    g = {"a": gradients((6, 5), 3), "b": gradients((4, 4, 3), 3)}
    alone, _ = trajectory(error_feedback(code), LANES3, g)
    together, states = trajectory(error_feedback(code, bucket=True), LANES3, g)
    assert len(states.error) == 1
    for k in g:
        np.testing.assert_array_equal(together[k], alone[k])


def test_B10_buckets_of_other_leaves_are_refused():
    a, b = jnp.ones((6, 5)), jnp.ones((5, 6))
    reducer = error_feedback(LEAF, bucket=True)
    state = reducer.init({"a": a, "b": b})
    reducer.update({"b": b, "a": a}, state)
    for other in ({"a": b, "b": a}, {"a": a, "c": b}, {"a": a}):
        with pytest.raises(ValueError, match="another model"):
            reducer.update(other, state)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exchange(LEAF, bucket=True, min_size=3), "leave one of the two out"),
        (lambda: exchange(random_k(), two_sided=True), "summed on the way"),
        (lambda: exchange(sign(), two_sided=True), "leave two_sided out"),
        (lambda: exchange(LEAF, min_size=-1), "min_size=-1"),
        (
            lambda: error_feedback(one_bit(), bucket=True).init(
                {"w": jnp.ones((8, 4))}
            ),
            "levels=leaf",
        ),
        (
            lambda: error_feedback(top_k(density=0.99), bucket=True).init(
                jnp.ones(100)
            ),
            "larger than the arrays",
        ),
    ],
)
def test_options_that_exclude_each_other_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_bucket_of_nothing_is_nothing():
    reducer = error_feedback(LEAF, bucket=True)
    assert reducer.update({}, reducer.init({}))[0] == {}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    "place",
    [*PLACES, ("pmap", 2, 2), ("debug", 1, 3)],
    ids=lambda p: f"{p[0]}-{p[1]}x{p[2]}",
)
@pytest.mark.parametrize("size", [5, 9000])
def test_the_maximum_shows_what_is_not_finite(place, value, size):
    workers = place[1] * place[2]
    x = gradients((size,), workers, 1)[:, 0]
    x[workers - 1, 2] = value
    got = over(comm.maximum, place, x)
    want = x.max(0)
    for mine in got:
        np.testing.assert_array_equal(mine, want)
    assert np.isnan(want[2]) == np.isnan(value)
