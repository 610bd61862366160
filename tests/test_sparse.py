"""Top-k, random-k and threshold against numpy, and what their papers promise."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sparse_oracles as oracles
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from sparse_codes import CODES, KEY, halves, named, normal, there_and_back
from test_comm import over
from test_largest import PLACES

from parsgd import comm, traffic
from parsgd.compressors import one_bit, payload_bytes, random_k, threshold, top_k
from parsgd.reducers import compressed_all_reduce, error_feedback

SHAPES = [(), (1,), (0, 4), (7,), (2, 3), (3, 3, 8, 8)]
RATIOS = [0.2, 0.5, 1.0]
DTYPES = [np.float32, jnp.bfloat16]
UNSCALED = ["top_k", "random_k", "threshold"]


def test_B7_the_largest_by_absolute_value():
    x = np.array([[-5.0, 1.0], [2.0, -3.0]], np.float32)
    _, got = there_and_back(top_k(density=0.5), x)
    np.testing.assert_array_equal(got, [[-5, 0], [0, -3]])
    reducer = error_feedback(top_k(density=0.5))
    sent, state = reducer.update({"w": jnp.asarray(x)}, reducer.init({"w": x}))
    np.testing.assert_array_equal(sent["w"], [[-5, 0], [0, -3]])
    np.testing.assert_array_equal(state.error["['w']"], [[0, 1], [2, 0]])


@pytest.mark.parametrize("name", CODES)
def test_B8_at_least_one_entry_of_any(name):
    for size, k in ((0, 0), (1, 1), (3, 1), (100, 1), (150, 2), (250, 2)):
        payload, got = there_and_back(named(name, 0.01), normal(size))
        assert payload.values.shape == (k,)
        assert np.count_nonzero(got) <= k


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_B8_ratio_one_is_dense_to_the_bit(shape, dtype):
    x = normal(shape, dtype)
    if x.size > 2:
        x.reshape(-1)[:3] = -0.0, np.nan, np.inf
    for name in ("top_k", "top_k sampled", "random_k", "random_k scaled"):
        payload, got = there_and_back(named(name, 1.0), x)
        assert got.dtype == x.dtype and got.tobytes() == x.tobytes(), name
        assert sum(p.nbytes for p in jax.tree.leaves(payload)) == 4 * x.size


@pytest.mark.parametrize("density", [0, 0.0, -0.1, 1.001, float("nan")])
def test_B8_densities_that_are_none_are_refused(density):
    for name, code in CODES.items():
        word = "max_density" if name == "threshold" else "density"
        with pytest.raises(ValueError, match=f"^{word}={density}.*at most 1"):
            code(density=density)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"select='best'.*exact, sampled"):
        top_k(select="best")
    for tau in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"tau={tau}"):
            threshold(tau=tau)
    with pytest.raises(ValueError, match="key"):
        random_k().encode(jnp.ones(200), None)


finite = st.floats(-1e3, 1e3, width=32)
arrays = st.sampled_from(SHAPES).flatmap(
    lambda shape: hnp.arrays(
        np.float32, shape, elements=st.one_of(finite, st.sampled_from([0, 1, -1, 2]))
    )
)


@settings(max_examples=60, deadline=None)
@given(arrays, st.sampled_from(RATIOS), st.sampled_from(DTYPES))
def test_top_k_is_the_oracle(x, density, dtype):
    x = x.astype(dtype)
    payload, got = there_and_back(named("top_k", density), x)
    assert payload.values.shape == (oracles.count(density, x.size),)
    assert payload.values.dtype == np.float32
    assert got.dtype == x.dtype and got.shape == x.shape
    np.testing.assert_array_equal(got, oracles.top_k(x, density).astype(dtype))


@settings(max_examples=40, deadline=None)
@given(
    arrays, st.sampled_from(RATIOS), st.sampled_from(["top_k", "random_k", "threshold"])
)
def test_conservation_contraction_and_bytes(x, density, name):
    code = named(name, density)
    payload, sent = there_and_back(code, x)
    k = oracles.count(density, x.size)
    want = 4 * k
    if name != "random_k":
        want += oracles.index_bytes(k, x.size)
    assert sum(p.nbytes for p in jax.tree.leaves(payload)) == want
    assert payload_bytes(code, x) == want
    # An entry is sent whole or not at all: nothing is rounded.
    np.testing.assert_array_equal(sent + (x - sent), x)
    assert ((sent == x) | (sent == 0)).all()
    if name == "top_k" and x.size:
        energy, left = np.sum(np.square(x, dtype=float)), x.astype(float) - sent
        assert np.sum(left**2) <= (1 - k / x.size) * energy * (1 + 1e-9)


@pytest.mark.parametrize("name", CODES)
def test_zero_stays_zero(name):
    for shape in ((7,), (2, 3)):
        _, got = there_and_back(named(name, 0.2), np.zeros(shape, np.float32))
        np.testing.assert_array_equal(got, np.zeros(shape))


@pytest.mark.parametrize("levels", ["leaf", "column"])
def test_values_through_another_code(levels):
    """The values are one column, so that levels for each are one pair too."""
    x = normal((20, 30))
    code = top_k(density=0.1, values=one_bit(levels=levels))
    payload, got = there_and_back(code, x)
    want = oracles.top_k(x, 0.1)
    high, low = want[want > 0].mean(), want[want < 0].mean()
    np.testing.assert_allclose(
        got, np.select([want > 0, want < 0], [high, low]), rtol=1e-5
    )
    size = oracles.index_bytes(60, 600)
    assert payload_bytes(code, x) == 8 + 8 + size
    assert payload.indices.nbytes == size
    assert code.name == "top_k of one_bit" and code.contracts and not code.sums


def test_facts_of_another_code_are_kept():
    noisy = halves()._replace(stochastic=True, shared_key=True, contracts=False)
    code = top_k(density=0.1, values=noisy)
    assert code.stochastic and code.shared_key
    assert not code.contracts and not code.sums

    seen = []
    spy = halves()._replace(encode=lambda x, key: seen.append(key) or x)
    top_k(density=0.1, values=spy).encode(jnp.ones(100), KEY)
    assert seen == [KEY]


def test_infinity_is_sent_and_spoils_nothing_else():
    x = normal(200)
    x[[3, 50]] = np.inf, np.nan
    _, got = there_and_back(top_k(density=0.05), x)
    assert got[3] == np.inf and got[50] == 0
    np.testing.assert_array_equal(got, oracles.top_k(x, 0.05))
    _, got = there_and_back(threshold(tau=0.1, max_density=0.9), x)
    assert got[3] == np.inf and got[50] == 0
    others = np.delete(got, 3)
    assert np.isfinite(others).all() and np.count_nonzero(others) > 100


@pytest.mark.parametrize(
    ("tau", "sent"), [(0.0, 50), (0.01, 50), (1.5, None), (100.0, 0)]
)
def test_threshold_sends_what_reaches_it_as_far_as_there_is_room(tau, sent):
    x = normal((10, 50))
    code = threshold(tau=tau, max_density=0.1)
    _, got = there_and_back(code, x)
    want, count = oracles.threshold(x, tau, 0.1)
    np.testing.assert_array_equal(got, want)
    assert count == np.count_nonzero(got)
    assert sent is None or count == sent


def test_threshold_includes_tau_itself():
    _, got = there_and_back(
        threshold(tau=2.0, max_density=1.0), np.array([2.0, -2.0, 1.999], np.float32)
    )
    np.testing.assert_array_equal(got, [2, -2, 0])


def test_facts_of_the_codes():
    plain, scaled = random_k(), random_k(scaled=True)
    for code in (plain, scaled):
        assert code.stochastic and code.shared_key and code.sums
    assert plain.contracts and not scaled.contracts
    for code in (top_k(), threshold(tau=1.0)):
        assert code.contracts and not code.sums and not code.stochastic
    with pytest.raises(ValueError, match="random_k scaled"):
        error_feedback(scaled)


@pytest.mark.parametrize("place", PLACES, ids=lambda p: f"{p[0]}-{p[1]}x{p[2]}")
def test_top_k_with_memory_is_the_oracle(place):
    workers, steps = place[1] * place[2], 4
    g = normal((steps, workers, 6, 20))
    reducer = error_feedback(top_k(density=0.1))

    def run(mine):
        def step(state, g):
            mean, state = reducer.update({"w": g}, state)
            return state, (mean["w"], state.error["['w']"])

        return jax.lax.scan(step, reducer.init({"w": mine[0]}), mine)[1]

    means, memory = over(run, place, g.swapaxes(0, 1))
    for t, (mean, left) in enumerate(oracles.with_feedback(g, 0.1)):
        for w in range(workers):
            np.testing.assert_allclose(means[w, t], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(memory[:, t], left)


@pytest.mark.parametrize("two_sided", [False, True])
def test_two_sided_and_one_bucket(two_sided):
    g = {"a": normal((3, 6, 20)), "b": normal((3, 9))}
    reducer = error_feedback(top_k(density=1.0), two_sided=two_sided, bucket=True)
    mean = over(lambda g: reducer.update(g, reducer.init(g))[0], PLACES[0], g)
    for name, x in g.items():
        np.testing.assert_allclose(mean[name][1], x.mean(0), rtol=1e-5, atol=1e-6)


def test_traffic_is_the_formula():
    like = {"w": jnp.zeros((100, 30)), "b": jnp.zeros(30)}
    bias = 2 * (4 - 1) / 4 * 4 * 30
    index = oracles.index_bytes(60, 3000)
    for code, want in (
        (top_k(density=0.02), 3 * (4 * 60 + index)),
        (random_k(density=0.02), 2 * 3 / 4 * 4 * 60),
        (threshold(tau=1.0, max_density=0.02), 3 * (4 * 60 + index)),
    ):
        reducer = compressed_all_reduce(code)
        step = lambda g, r=reducer: r.update(g, r.init(g))[0]
        assert traffic.trace(step, 4, like).bytes == want + bias, code.name


def test_B12_biases_alone_are_averaged_and_nothing_is_compressed():
    g = {"b": normal((3, 7)), "s": normal((3,))}
    reducer = optax.chain(error_feedback(top_k(density=0.5)), optax.sgd(0.1))
    plain = lambda g: jax.tree.map(lambda x: -0.1 * x, comm.mean(g))
    got = over(lambda g: reducer.update(g, reducer.init(g))[0], PLACES[0], g)
    want = over(plain, PLACES[0], g)
    for name in g:
        np.testing.assert_array_equal(got[name], want[name])
    one = jax.tree.map(lambda x: jnp.asarray(x[0]), g)
    messages = traffic.trace(
        lambda g: reducer.update(g, reducer.init(g))[0], 3, one
    ).messages
    assert {m.dtype for m in messages} == {"float32"}
    assert sum(int(np.prod(m.shape)) for m in messages) == 8
