"""Top-k, random-k and threshold against numpy, and what their papers promise."""

import contextlib
import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sparse_oracles as oracles
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from parsgd import comm, traffic
from parsgd.compressors import (
    Compressor,
    one_bit,
    payload_bytes,
    random_k,
    threshold,
    top_k,
)
from parsgd.compressors import select as selection
from parsgd.compressors.index_packing import (
    form,
    index_bytes,
    pack_indices,
    unpack_indices,
)
from parsgd.placement import Placement
from parsgd.reducers import compressed_all_reduce, error_feedback
from parsgd.spmd import spmd

SHAPES = [(), (1,), (0, 4), (7,), (2, 3), (3, 3, 8, 8)]
RATIOS = [0.2, 0.5, 1.0]
DTYPES = [np.float32, jnp.bfloat16]
KEY = jax.random.key(3)
CODES = {
    "top_k": top_k,
    "top_k sampled": lambda ratio: top_k(ratio=ratio, select="sampled"),
    "random_k": random_k,
    "random_k scaled": lambda ratio: random_k(ratio=ratio, scaled=True),
    "threshold": lambda ratio: threshold(tau=0.5, capacity_ratio=ratio),
}
UNSCALED = ["top_k", "random_k", "threshold"]


def halves() -> Compressor:
    """Values as bfloat16."""
    return Compressor(
        lambda x, key: x.astype(jnp.bfloat16),
        lambda p, like, key: p.astype(like.dtype),
        "halves",
        sums=True,
    )


def normal(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@functools.cache
def named(name, ratio):
    """One code, and so one compiled program, for each name and ratio."""
    return CODES[name](ratio=ratio)


@functools.cache
def program(code):
    def both(x, key):
        payload = code.encode(x, key)
        return payload, code.decode(payload, x, key)

    return jax.jit(both)


def there_and_back(code, x, key=KEY):
    payload, decoded = program(code)(jnp.asarray(x), key)
    return payload, np.asarray(decoded)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def choose(x, k, sample=selection.SAMPLE, sampled=False):
    """`largest`; arrays longer than ``sample`` take the way of the large ones."""
    with small_samples(sample):
        return selection.largest(x, k, sampled=sampled)


@contextlib.contextmanager
def small_samples(size):
    old, selection.SAMPLE = selection.SAMPLE, size
    try:
        yield
    finally:
        selection.SAMPLE = old


def over(fn, place, *args):
    """Run one worker's ``fn`` on arrays with a leading worker axis."""
    kind, devices, lanes = place
    where = Placement(kind, tuple(jax.devices()[:devices]), lanes)
    run = jax.jit(spmd(fn, where, (False,) * len(args), False, args))
    return jax.tree.map(np.asarray, run(*args))


PLACES = [("vmap", 1, 3), ("vmap", 1, 4), ("shard_map", 4, 1), ("shard_map", 2, 2)]


def test_B7_the_largest_by_absolute_value():
    x = np.array([[-5.0, 1.0], [2.0, -3.0]], np.float32)
    _, got = there_and_back(top_k(ratio=0.5), x)
    np.testing.assert_array_equal(got, [[-5, 0], [0, -3]])
    reducer = error_feedback(top_k(ratio=0.5))
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


@pytest.mark.parametrize("ratio", [0, 0.0, -0.1, 1.001, float("nan")])
def test_B8_ratios_that_are_none_are_refused(ratio):
    for name, code in CODES.items():
        word = "capacity_ratio" if name == "threshold" else "ratio"
        with pytest.raises(ValueError, match=f"^{word}={ratio}.*at most 1"):
            code(ratio=ratio)


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
def test_top_k_is_the_oracle(x, ratio, dtype):
    x = x.astype(dtype)
    payload, got = there_and_back(named("top_k", ratio), x)
    assert payload.values.shape == (oracles.count(ratio, x.size),)
    assert payload.values.dtype == np.float32
    assert got.dtype == x.dtype and got.shape == x.shape
    np.testing.assert_array_equal(got, oracles.top_k(x, ratio).astype(dtype))


@settings(max_examples=40, deadline=None)
@given(
    arrays, st.sampled_from(RATIOS), st.sampled_from(["top_k", "random_k", "threshold"])
)
def test_conservation_contraction_and_bytes(x, ratio, name):
    code = named(name, ratio)
    payload, sent = there_and_back(code, x)
    k = oracles.count(ratio, x.size)
    want = 4 * k
    if name != "random_k":
        want += oracles.index_bytes(k, x.size)
    want += 4 * (name == "threshold")
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


HARD = {
    "normal": lambda n: normal(n),
    "heavy tails": lambda n: normal(n) ** 5,
    "all equal": lambda n: np.full(n, -2.0, np.float32),
    "zero": lambda n: np.zeros(n, np.float32),
    "few values": lambda n: np.round(normal(n)).astype(np.float32),
    "rising": lambda n: np.arange(n, dtype=np.float32),
    "falling": lambda n: -np.arange(n, 0, -1, dtype=np.float32),
    "sample sees zeros": lambda n: normal(n) * (np.arange(n) % (n // 64) != 0),
    "sample sees the largest": lambda n: (
        normal(n) * (1 + 99 * (np.arange(n) % (n // 64) == 0))
    ).astype(np.float32),
    "one spike": lambda n: np.where(np.arange(n) == n - 1, 1e30, 1e-30).astype("f"),
    "mostly NaN": lambda n: np.where(np.arange(n) % 9, np.nan, normal(n)).astype("f"),
    "all NaN": lambda n: np.full(n, np.nan, np.float32),
    "NaN and inf": lambda n: np.where(
        np.arange(n) % 50 == 1, np.nan, np.where(np.arange(n) % 70 == 2, np.inf, 1)
    ).astype(np.float32),
    "subnormal": lambda n: (normal(n) * 1e-40).astype(np.float32),
}


@pytest.mark.parametrize("n", [65, 449, 4000])
@pytest.mark.parametrize("hard", HARD)
def test_large_arrays_choose_as_the_oracle(hard, n):
    x = HARD[hard](n)
    for k in (1, n // 10, n - 1):
        got = choose(x, k, 64)
        np.testing.assert_array_equal(got, oracles.largest(x, k), str(k))


@pytest.mark.parametrize("hard", HARD)
def test_sampled_choice_sends_the_largest_it_knows(hard):
    n, k = 4000, 40
    x = HARD[hard](n)
    got = np.asarray(choose(x, k, 64, True))
    assert len({*got.tolist()}) == k and (np.diff(got) > 0).all()
    numbers = np.count_nonzero(~np.isnan(x))
    assert np.count_nonzero(~np.isnan(x[got])) == min(k, numbers)
    size = np.abs(np.where(np.isnan(x), 0, x))
    assert size[got].max() == size.max()


@pytest.mark.parametrize("hard", ["normal", "few values", "falling", "one spike"])
def test_sampled_choice_is_exact_where_the_sample_is_like_the_rest(hard):
    x = HARD[hard](200_001)
    got = choose(x, 2000, sampled=True)
    np.testing.assert_array_equal(got, oracles.largest(x, 2000))


def test_large_arrays_under_vmap_scan_and_shard_map():
    rows = np.stack([make(1500) for make in HARD.values()])
    want = [oracles.largest(x, 30) for x in rows]
    pick = lambda x: choose(x, 30, 64)
    np.testing.assert_array_equal(jax.jit(jax.vmap(pick))(rows), want)
    np.testing.assert_array_equal(jax.jit(lambda x: jax.lax.map(pick, x))(rows), want)
    for place in PLACES[1:]:
        some = rows[:4]
        np.testing.assert_array_equal(over(pick, place, some), want[:4])


def test_every_set_bit_is_found():
    for density in (0.0, 0.01, 0.5, 1.0):
        mask = np.random.default_rng(0).random(1000) < density
        words = selection.pack_words(jnp.asarray(mask))
        assert words.shape == (32,) and words.dtype == jnp.uint32
        where = np.flatnonzero(mask)
        got = selection.positions(words, 1000)[: len(where)]
        np.testing.assert_array_equal(got, where)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_indices_come_back_from_the_narrowest_form(data):
    n = data.draw(st.sampled_from([1, 2, 3, 17, 100, 1000, 5000]))
    k = data.draw(st.sampled_from(sorted({0, 1, 2, n // 50, n // 5, n // 2, n})))
    k = min(k, n)
    seed = data.draw(st.integers(0, 99))
    index = np.sort(np.random.default_rng(seed).permutation(n)[:k]).astype(np.int32)
    packed = pack_indices(jnp.asarray(index), n)
    assert packed.dtype == jnp.uint8
    assert packed.size == index_bytes(k, n) == oracles.index_bytes(k, n)
    np.testing.assert_array_equal(unpack_indices(packed, k, n), index)
    if 0 < k < n and form(k, n).unary:
        lower, upper = oracles.elias_fano_bits(index.tolist(), form(k, n).width)
        bits = oracles.bytes_of(lower) + oracles.bytes_of(upper)
        # The bitmap has room for the largest index, with zeros after the last one.
        assert packed.tolist() == bits + [0] * (packed.size - len(bits))


def test_one_percent_of_seven_million_indices_take_nine_bits():
    n, k = 6_900_000, 69_000
    assert 8 * index_bytes(k, n) / k < 8.6
    like = jax.ShapeDtypeStruct((n,), jnp.float32)
    assert payload_bytes(top_k(), like) == 4 * k + oracles.index_bytes(k, n)
    assert payload_bytes(random_k(), like) == 4 * k
    half = payload_bytes(top_k(values=halves()), like)
    assert half == 2 * k + oracles.index_bytes(k, n)


def test_values_through_another_code():
    x = normal((20, 30))
    code = top_k(ratio=0.1, values=one_bit(levels="leaf"))
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
    code = top_k(ratio=0.1, values=noisy)
    assert code.stochastic and code.shared_key
    assert not code.contracts and not code.sums

    seen = []
    spy = halves()._replace(encode=lambda x, key: seen.append(key) or x)
    top_k(ratio=0.1, values=spy).encode(jnp.ones(100), KEY)
    assert seen == [KEY]


def test_infinity_is_sent_and_spoils_nothing_else():
    x = normal(200)
    x[[3, 50]] = np.inf, np.nan
    _, got = there_and_back(top_k(ratio=0.05), x)
    assert got[3] == np.inf and got[50] == 0
    np.testing.assert_array_equal(got, oracles.top_k(x, 0.05))
    _, got = there_and_back(threshold(tau=0.1, capacity_ratio=0.9), x)
    assert got[3] == np.inf and got[50] == 0
    others = np.delete(got, 3)
    assert np.isfinite(others).all() and np.count_nonzero(others) > 100


@pytest.mark.parametrize(
    ("tau", "sent"), [(0.0, 50), (0.01, 50), (1.5, None), (100.0, 0)]
)
def test_threshold_sends_what_reaches_it_as_far_as_there_is_room(tau, sent):
    x = normal((10, 50))
    code = threshold(tau=tau, capacity_ratio=0.1)
    payload, got = there_and_back(code, x)
    want, count = oracles.threshold(x, tau, 0.1)
    np.testing.assert_array_equal(got, want)
    assert int(payload.count) == count == np.count_nonzero(got)
    assert sent is None or count == sent
    assert payload.count.dtype == jnp.int32


def test_threshold_includes_tau_itself():
    _, got = there_and_back(
        threshold(tau=2.0, capacity_ratio=1.0), np.array([2.0, -2.0, 1.999], np.float32)
    )
    np.testing.assert_array_equal(got, [2, -2, 0])


def draws(code, x, count):
    keys = jax.random.split(jax.random.key(7), count)
    both = lambda key: code.decode(code.encode(x, key), x, key)
    return np.asarray(jax.jit(jax.vmap(both))(keys), float)


def test_random_k_contracts_in_expectation():
    x = jnp.asarray(normal(20) * np.arange(1, 21, dtype=np.float32))
    sent = draws(random_k(ratio=0.25), x, 4000)
    assert (np.count_nonzero(sent, axis=1) == 5).all()
    # Every entry is as likely as any other, and every pair.
    chosen = (sent != 0).astype(float)
    np.testing.assert_allclose(chosen.mean(0), 0.25, atol=5 * np.sqrt(0.1875 / 4000))
    pairs = chosen.T @ chosen / 4000
    apart = ~np.eye(20, dtype=bool)
    np.testing.assert_allclose(pairs[apart], 5 * 4 / (20 * 19), atol=0.02)
    error = np.sum((np.asarray(x, float) - sent) ** 2, axis=1)
    energy = np.sum(np.asarray(x, float) ** 2)
    spread = error.std() / np.sqrt(4000)
    assert abs(error.mean() - 0.75 * energy) < 5 * spread


def test_scaled_random_k_is_unbiased_with_its_exact_variance():
    x = jnp.asarray(normal(20))
    sent = draws(random_k(ratio=0.25, scaled=True), x, 4000)
    v = np.asarray(x, float)
    deviation = np.abs(v) * np.sqrt(3 / 4000)
    assert (np.abs(sent.mean(0) - v) < 5 * deviation).all()
    error = np.sum((sent - v) ** 2, axis=1)
    spread = error.std() / np.sqrt(4000)
    assert abs(error.mean() - (20 / 5 - 1) * np.sum(v**2)) < 5 * spread


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
def test_B13_random_k_chooses_alike_on_all_workers_and_anew_each_step(place):
    workers = place[1] * place[2]
    x = {"w": 1 + np.abs(normal((workers, 8, 25)))}
    for scaled in (False, True):
        reducer = compressed_all_reduce(random_k(ratio=0.1, scaled=scaled), seed=5)

        def two_steps(g, reducer=reducer):
            first, state = reducer.update(g, reducer.init(g))
            second, _ = reducer.update(g, state)
            return first["w"], second["w"]

        steps = over(two_steps, place, x)
        factor = 10 if scaled else 1
        for step in steps:
            chosen = step[0] != 0
            assert chosen.sum() == 20
            for mine in step:
                np.testing.assert_array_equal(mine, step[0])
            np.testing.assert_allclose(
                step[0][chosen], factor * x["w"].mean(0)[chosen], rtol=1e-5
            )
        assert ((steps[0][0] != 0) != (steps[1][0] != 0)).any()


def test_random_k_depends_on_the_seed():
    x = {"w": jnp.asarray(1 + np.abs(normal((8, 25))))}
    both = []
    for seed in (0, 1):
        reducer = compressed_all_reduce(random_k(ratio=0.1), seed=seed)
        both.append(np.asarray(reducer.update(x, reducer.init(x))[0]["w"]))
    assert ((both[0] != 0) != (both[1] != 0)).any()


@pytest.mark.parametrize("place", PLACES, ids=lambda p: f"{p[0]}-{p[1]}x{p[2]}")
def test_top_k_with_memory_is_the_oracle(place):
    workers, steps = place[1] * place[2], 4
    g = normal((steps, workers, 6, 20))
    reducer = error_feedback(top_k(ratio=0.1))

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
    reducer = error_feedback(top_k(ratio=1.0), two_sided=two_sided, bucket=True)
    mean = over(lambda g: reducer.update(g, reducer.init(g))[0], PLACES[0], g)
    for name, x in g.items():
        np.testing.assert_allclose(mean[name][1], x.mean(0), rtol=1e-5, atol=1e-6)


def test_traffic_is_the_formula():
    like = {"w": jnp.zeros((100, 30)), "b": jnp.zeros(30)}
    bias = 2 * (4 - 1) / 4 * 4 * 30
    index = oracles.index_bytes(60, 3000)
    for code, want in (
        (top_k(ratio=0.02), 3 * (4 * 60 + index)),
        (random_k(ratio=0.02), 2 * 3 / 4 * 4 * 60),
        (threshold(tau=1.0, capacity_ratio=0.02), 3 * (4 * 60 + index + 4)),
    ):
        reducer = compressed_all_reduce(code)
        step = lambda g, r=reducer: r.update(g, r.init(g))[0]
        assert traffic.trace(step, 4, like).bytes == want + bias, code.name


def test_B12_biases_alone_are_averaged_and_nothing_is_compressed():
    g = {"b": normal((3, 7)), "s": normal((3,))}
    reducer = optax.chain(error_feedback(top_k(ratio=0.5)), optax.sgd(0.1))
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
