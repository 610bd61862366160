"""What all quantising codes keep: shapes, bytes, what was lost, NaN, lanes."""

import functools
import math

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from quantizer_codes import (
    BLOCKED,
    CODES,
    DTYPES,
    FORMULAS,
    KEY,
    SHAPES,
    close,
    normal,
    through,
)

from parsgd import comm
from parsgd.compressors import (
    dynamic_tree_8bit,
    fp8,
    linear_8bit,
    natural,
    one_bit,
    payload_bytes,
    qsgd,
    scaled_sign,
    sign,
    terngrad,
)
from parsgd.reducers import compressed_all_reduce, error_feedback


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_B4_K4_every_shape_and_type(name, dtype):
    code = CODES[name]

    @functools.partial(jax.jit, static_argnames=("shape", "dtype"))
    def both(x, shape, dtype):
        payload = code.encode(x, KEY)
        return payload, code.decode(payload, jax.ShapeDtypeStruct(shape, dtype), KEY)

    shapes = SHAPES if dtype == np.float32 else [(), (0, 4), (2, 3)]
    for shape in shapes:
        x = normal(shape, dtype)
        payload, got = both(x, shape, dtype)
        assert got.shape == shape and got.dtype == dtype
        assert bool(jnp.isfinite(got).all())
        columns = (shape[-1] or 1) if shape else 1
        size = sum(p.nbytes for p in jax.tree.leaves(payload))
        assert size == payload_bytes(code, x) == FORMULAS[name](x.size, columns)
        zeros = jnp.zeros_like(x)
        np.testing.assert_array_equal(both(zeros, shape, dtype)[1], zeros)


@pytest.mark.parametrize("name", CODES)
def test_payload_of_64K_elements_is_the_formula(name):
    like = jax.ShapeDtypeStruct((256, 257), jnp.float32)
    bits = {"scaled_sign": 1, "qsgd": 5 + 1 / 16, "terngrad": 2, "natural": 9}
    assert payload_bytes(CODES[name], like) == FORMULAS[name](like.size, 257)
    if name in bits:  # nothing is lost to padding
        assert payload_bytes(CODES[name], like) <= 1.001 * bits[name] * like.size / 8


finite = st.floats(-(2.0**40), 2.0**40, width=32).map(
    lambda v: 0.0 if abs(v) < 2.0**-40 else v
)
arrays = hnp.arrays(
    np.float32,
    st.sampled_from([(1,), (7,), (3, 3, 2, 5)]),
    elements=finite,
)
EXACT = {"natural", "natural nearest", "bf16"}  # v - q has no rounding
SHRINKS = {n for n, code in CODES.items() if code.contracts and not code.stochastic}


@pytest.mark.parametrize("name", sorted(EXACT | SHRINKS))
@settings(max_examples=25, deadline=None)
@given(v=arrays, seed=st.integers(0, 2**31 - 1))
def test_B1_conserves_and_shrinks(name, v, seed):
    code, key = CODES[name], jax.random.key(seed)
    if name == "fp16" or "unscaled" in name:
        v = np.clip(v, -400, 400)
    for dtype in DTYPES:
        x = jnp.asarray(v, dtype).astype(jnp.float32)
        q = through(code, x, key)
        left = x - q
        if name in EXACT:
            np.testing.assert_array_equal(q + left, x)
        if name in SHRINKS:
            norm = float(jnp.sum(jnp.square(x)))
            assert float(jnp.sum(jnp.square(left))) <= norm * (1 + 1e-6)


@settings(max_examples=40, deadline=None)
@given(v=arrays)
def test_contraction_constants(v):
    x, v = jnp.asarray(v), np.float64(v)
    norm = np.sum(v**2)

    def lost(name):  # the same objects every time: what they compile to is kept
        return np.sum((v - np.float64(through(CODES[name], x))) ** 2)

    scaled = norm - np.sum(np.abs(v)) ** 2 / v.size
    np.testing.assert_allclose(lost("scaled_sign"), scaled, rtol=1e-4, atol=1e-5 * norm)
    # The largest entry comes back (to 0.71 % in the tree), others lose no more than v.
    rounding = 1e-12 * norm
    assert lost("linear_8bit") <= (1 - 1 / v.size) * norm * (1 + 1e-5) + rounding
    tree = (1 - 0.9999 / v.size) * norm * (1 + 1e-5) + rounding
    assert lost("dynamic_tree_8bit") <= tree
    assert lost("natural nearest") <= norm / 9 * (1 + 1e-6)
    assert lost("natural") <= norm  # at most |v| each
    assert lost("bf16") <= 2.0**-16 * norm * (1 + 1e-6)
    # Each level is the mean of its part, so it takes the part's n m^2 from the norm.
    parts = [part for part in (v[v >= 0], v[v < 0]) if part.size]
    left = norm - sum(part.size * part.mean() ** 2 for part in parts)
    np.testing.assert_allclose(lost("one_bit leaf"), left, rtol=1e-3, atol=1e-5 * norm)
    # Half a unit in the last place of what has 3 or 2 bits behind the point, and half
    # of the smallest number, in units of the largest.
    for name, bits, least in (
        ("fp8", 4, 2.0**-10 / 448),
        ("fp8 e5m2", 3, 2.0**-17 / 57344),
    ):
        tiny = v.size * (least * np.abs(v).max()) ** 2
        assert lost(name) <= (4.0**-bits * norm + tiny) * (1 + 1e-5) + rounding


@settings(max_examples=40, deadline=None)
@given(
    v=hnp.arrays(
        np.float32, (3, 2, 5), elements=finite.map(lambda v: math.fmod(v, 400))
    )
)
def test_contraction_constants_of_columns_and_half_precision(v):
    x, v = jnp.asarray(v), np.float64(v)
    norm = np.sum(v**2)
    q = np.float64(through(CODES["fp16"], x))
    assert np.sum((v - q) ** 2) <= 4.0**-11 * norm + v.size * 4.0**-25
    columns = v.reshape(-1, 5).T
    left = norm
    for column in columns:
        parts = [
            part for part in (column[column >= 0], column[column < 0]) if part.size
        ]
        left -= sum(part.size * part.mean() ** 2 for part in parts)
    lost = np.sum((v - np.float64(through(CODES["one_bit"], x))) ** 2)
    np.testing.assert_allclose(lost, left, rtol=1e-3, atol=1e-5 * norm + 1e-12)


@pytest.mark.parametrize("name", CODES)
def test_what_is_not_finite_stays_in_its_block(name):
    code, x = CODES[name], normal((256,))
    before = through(code, x)
    for bad in (jnp.nan, jnp.inf):
        poisoned = np.asarray(through(code, x.at[100].set(bad)))
        assert not np.isfinite(poisoned[100])
        if name in BLOCKED:
            size = BLOCKED[name]
            rest = np.arange(256) // size != 100 // size
            np.testing.assert_array_equal(poisoned[rest], before[rest])


@pytest.mark.parametrize(
    "name", [n for n, code in CODES.items() if code.exposes_nonfinite]
)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_payloads_that_show_what_is_not_finite_do(name, bad):
    code = CODES[name]
    encode = jax.jit(code.encode)

    def largest(payload):
        floats = [
            x for x in jax.tree.leaves(payload) if jnp.issubdtype(x.dtype, jnp.floating)
        ]
        return max(float(jnp.max(jnp.abs(x))) for x in floats)

    for size in (1e-30, 1.0, 1e38):
        x = size * normal((16, 16))
        payload = encode(x, KEY)
        bound = largest(payload)
        assert bound == np.inf or np.isfinite(bound)
        decoded = np.abs(np.asarray(code.decode(payload, x, KEY)))
        assert bound == np.inf or decoded.max() <= bound * (1 + 1e-6)
        for at in ((0, 0), (7, 3), (15, 15)):
            assert not np.isfinite(largest(encode(x.at[at].set(bad), KEY)))


@pytest.mark.parametrize("name", CODES)
def test_lanes_decode_what_one_worker_decodes(name):
    code, x = CODES[name], normal((3, 5, 40))
    keys = jax.random.split(KEY, 3)
    lanes = jax.vmap(lambda x, key: through(code, x, key))(x, keys)
    for w in range(3):
        close(lanes[w], np.float64(through(code, x[w], keys[w])), edges=1)


@pytest.mark.parametrize("name", CODES)
def test_reducers_average_what_workers_sent(name):
    reducer = compressed_all_reduce(CODES[name])
    x = {"w": normal((3, 32, 40))}

    def step(g):
        return reducer.update(g, reducer.init(g))[0]

    mean = jax.jit(jax.vmap(step, axis_name=comm.LANES))(x)["w"]
    for w in range(3):
        np.testing.assert_array_equal(mean[w], mean[0])
    # Each drew with a key of its own.
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 0)
    alone = lambda v, w: through(CODES[name], v, jax.random.fold_in(key, w))
    sent = jax.jit(jax.vmap(alone, axis_name=comm.LANES))(x["w"], jnp.arange(3))
    size = float(jnp.max(jnp.abs(sent)))
    np.testing.assert_allclose(mean[0], np.float64(sent).mean(0), atol=4e-3 * size)


def test_feedback_takes_codes_that_contract():
    for name, code in CODES.items():
        if code.contracts:
            error_feedback(code)
        else:
            with pytest.raises(ValueError, match=r"feedback.*grow without bound"):
                error_feedback(code)
        loose = ("sign", "scaled_sign l2", "terngrad", "terngrad unclipped")
        loose += ("linear_8bit random", "fp8 unscaled")
        assert code.contracts == (name not in loose)
    assert not qsgd(levels=1, bucket_size=4).contracts
    assert qsgd(levels=1, bucket_size=3).contracts
    assert not linear_8bit(rounding="random", block_size=4 * 127**2).contracts
    assert linear_8bit(rounding="random", block_size=4 * 127**2 - 1).contracts


def test_feedback_sends_everything_in_the_end():
    reducer = error_feedback(scaled_sign())
    g = {"w": normal((8, 9))}
    state = reducer.init(g)
    assert isinstance(reducer, optax.GradientTransformation)
    total = np.zeros((8, 9))
    for t in range(50):
        sent, state = reducer.update(
            jax.tree.map(lambda x, t=t: x * (1 + t % 3), g), state
        )
        total += np.float64(sent["w"])
    error = np.float64(next(iter(jax.tree.leaves(state.error))))
    want = np.float64(g["w"]) * sum(1 + t % 3 for t in range(50))
    np.testing.assert_allclose(total + error, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: qsgd(levels=0), "levels="),
        (lambda: qsgd(levels=128), "levels="),
        (lambda: qsgd(bucket_size=0), "bucket_size="),
        (lambda: qsgd(norm="l1"), "choose one of l2, max"),
        (lambda: terngrad(clip=0.0), "positive number"),
        (lambda: natural(rounding="up"), "choose one of random, nearest"),
        (lambda: linear_8bit(block_size=0), "block_size="),
        (lambda: dynamic_tree_8bit(block_size=-1), "block_size="),
        (lambda: linear_8bit(rounding="up"), "choose one of nearest, random"),
        (lambda: fp8(format="e3m4"), "choose one of e4m3, e5m2"),
        (lambda: scaled_sign(zero="zero"), "choose one of positive, negative"),
        (lambda: sign(zero="zero"), "choose one of positive, negative"),
        (lambda: one_bit(levels="row"), "choose one of column, leaf"),
        (lambda: qsgd().encode(jnp.ones(3), None), "needs a key"),
        (lambda: terngrad().encode(jnp.ones(3), None), "needs a key"),
        (lambda: natural().encode(jnp.ones(3), None), "needs a key"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
