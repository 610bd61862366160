"""Signs, QSGD, TernGrad, natural, 8-bit and casts: oracles and what papers promise."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import quantizer_oracles as oracles
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from parsgd import comm
from parsgd.compressors import (
    bf16,
    dynamic_tree_8bit,
    fp8,
    fp16,
    linear_8bit,
    natural,
    one_bit,
    payload_bytes,
    qsgd,
    scaled_sign,
    sign,
    terngrad,
)
from parsgd.compressors.eight_bit import dynamic_tree_values
from parsgd.compressors.packing import pack, packed_bytes, unpack
from parsgd.compressors.random import uniform, uniform_bits
from parsgd.reducers import compressed_all_reduce, error_feedback

KEY = jax.random.key(3)
SHAPES = [(), (1,), (0, 4), (4, 0), (7,), (2, 3), (3, 3, 8, 8)]
DTYPES = [np.float32, jnp.bfloat16]
CODES = {
    "one_bit": one_bit(),
    "one_bit leaf": one_bit(levels="leaf"),
    "scaled_sign": scaled_sign(),
    "sign": sign(),
    "qsgd": qsgd(),
    "qsgd max": qsgd(levels=7, bucket=64, norm="max"),
    "qsgd odd bucket": qsgd(levels=3, bucket=5),
    "terngrad": terngrad(),
    "terngrad unclipped": terngrad(clip=None),
    "natural": natural(),
    "natural nearest": natural(rounding="nearest"),
    "linear_8bit": linear_8bit(),
    "linear_8bit block": linear_8bit(block=64),
    "linear_8bit random": linear_8bit(rounding="random"),
    "dynamic_tree_8bit": dynamic_tree_8bit(),
    "dynamic_tree_8bit block": dynamic_tree_8bit(block=32),
    "fp16": fp16(),
    "bf16": bf16(),
    "fp8": fp8(),
    "fp8 e5m2": fp8(format="e5m2"),
    "fp8 unscaled": fp8(scaled=False),
}
BLOCKED = {
    "qsgd max": 64,
    "qsgd odd bucket": 5,
    "linear_8bit block": 64,
    "dynamic_tree_8bit block": 32,
}


def count(n, size):
    return max(1, -(-n // size))


FORMULAS = {  # bytes, of n entries with c columns
    "one_bit": lambda n, c: -(-n // 8) + 8 * c,
    "one_bit leaf": lambda n, c: -(-n // 8) + 8,
    "scaled_sign": lambda n, c: -(-n // 8) + 4,
    "sign": lambda n, c: -(-n // 8),
    "qsgd": lambda n, c: 5 * -(-n // 8) + 4 * count(n, 512),
    "qsgd max": lambda n, c: 4 * -(-n // 8) + 4 * count(n, 64),
    "qsgd odd bucket": lambda n, c: 3 * -(-n // 8) + 4 * count(n, 5),
    "terngrad": lambda n, c: 2 * -(-n // 8) + 4,
    "terngrad unclipped": lambda n, c: 2 * -(-n // 8) + 4,
    "natural": lambda n, c: 9 * -(-n // 8),
    "natural nearest": lambda n, c: 9 * -(-n // 8),
    "linear_8bit": lambda n, c: n + 4,
    "linear_8bit block": lambda n, c: n + 4 * count(n, 64),
    "linear_8bit random": lambda n, c: n + 4,
    "dynamic_tree_8bit": lambda n, c: n + 4 * count(n, 2048),
    "dynamic_tree_8bit block": lambda n, c: n + 4 * count(n, 32),
    "fp16": lambda n, c: 2 * n,
    "bf16": lambda n, c: 2 * n,
    "fp8": lambda n, c: n + 4,
    "fp8 e5m2": lambda n, c: n + 4,
    "fp8 unscaled": lambda n, c: n,
}


def normal(shape, dtype=np.float32, seed=0):
    v = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(v, dtype)


@functools.partial(jax.jit, static_argnames="code")
def through(code, x, key=KEY):
    return code.decode(code.encode(x, key), x, key)


def close(got, want, *, edges=0):
    """Equal to rounding; all but ``edges`` entries, whose draws float32 decides."""
    off = ~np.isclose(np.asarray(got, np.float64), want, rtol=2e-5, atol=1e-12)
    assert off.sum() <= edges, (np.asarray(got)[off], np.asarray(want)[off])


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 9, 13, 17, 32])
@pytest.mark.parametrize("n", [0, 1, 8, 9, 100])
def test_packs_without_gaps(width, n):
    high = 2**width
    codes = np.random.default_rng(n).integers(0, high, n, np.uint64).astype(np.uint32)
    got = pack(jnp.asarray(codes), width)
    np.testing.assert_array_equal(got, oracles.packed(codes, width))
    assert got.size == packed_bytes(n, width)
    np.testing.assert_array_equal(unpack(got, width, n), codes)


def test_a_code_that_is_too_large_stays_in_its_place():
    got = unpack(pack(jnp.array([1, 255, 2], jnp.uint8), 3), 3, 3)
    np.testing.assert_array_equal(got, [1, 7, 2])
    with pytest.raises(ValueError, match="1 to 32 bits"):
        pack(jnp.array([1]), 33)


def test_random_bits_are_uniform_and_independent():
    n = 1 << 16
    draws = [np.asarray(uniform_bits(jax.random.key(s), (n,))) for s in range(4)]
    draws.append(np.asarray(uniform_bits(jax.random.fold_in(KEY, 1), (n,))))
    for words in draws:
        for shift in (0, 8, 16, 24):
            counts = np.bincount((words >> shift) & 255, minlength=256)
            chi = np.sum((counts - n / 256) ** 2) / (n / 256)
            assert 150 < chi < 380  # 255 degrees of freedom: about 5.5 sigma
        bits = np.unpackbits(words.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 5 / np.sqrt(4 * bits.size)
    unit = np.array([w / 2.0**32 - 0.5 for w in draws]) * np.sqrt(12)
    for lag in (0, 1, 2, 8, 512):  # between streams, and within one
        mixed = unit[:, : n - lag] @ unit[:, lag:].T / (n - lag)
        expected = np.eye(len(unit)) if lag == 0 else 0
        assert np.abs(mixed - expected).max() < 6 / np.sqrt(n)


def test_a_part_draws_what_the_whole_draws():
    whole = uniform(KEY, (50,))
    np.testing.assert_array_equal(uniform(KEY, (20,), 30), whole[30:])
    assert whole.min() >= 0 and whole.max() < 1
    np.testing.assert_array_equal(uniform(KEY, (5, 10)).reshape(-1), whole)


@pytest.mark.parametrize("n", [1, 40, 512, 1030, 2048])
@pytest.mark.parametrize("bucket", [5, 64, 512])
@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("levels", [1, 15, 127])
def test_qsgd_follows_its_oracle(n, bucket, norm, levels):
    x = normal((n,))
    code = qsgd(levels=levels, bucket=bucket, norm=norm)
    v, u = np.float64(x), np.float64(uniform(KEY, (n,)))
    want = oracles.qsgd(v, u, levels, bucket, norm)
    close(through(code, x), want, edges=2)


@pytest.mark.parametrize("clip", [None, 0.5, 2.5])
def test_terngrad_follows_its_oracle(clip):
    x = normal((2500,))  # two whole rows of what has no groups, and a rest
    v, u = np.float64(x), np.float64(uniform(KEY, x.shape))
    close(through(terngrad(clip=clip), x), oracles.terngrad(v, u, clip), edges=2)


def test_natural_follows_its_oracle():
    x = normal((2000,)) * jnp.exp(3 * normal((2000,), seed=1))
    v = np.float64(x)
    u = np.float64(uniform_bits(KEY, x.shape) >> 9) / 2**23
    np.testing.assert_array_equal(through(natural(), x), oracles.natural(v, u))
    nearest = oracles.natural(v, np.full(v.shape, 0.5))
    np.testing.assert_array_equal(through(natural(rounding="nearest"), x), nearest)


@pytest.mark.parametrize("block", [None, 7, 64, 2048])
def test_8bit_codes_follow_their_oracles(block):
    x = normal((2500,))  # two whole rows of what has no groups, and a rest
    v, u = np.float64(x), np.float64(uniform(KEY, x.shape))
    close(through(linear_8bit(block=block), x), oracles.linear_8bit(v, block), edges=2)
    got = through(linear_8bit(block=block, rounding="random"), x)
    close(got, oracles.linear_8bit(v, block, u), edges=2)
    x = x * jnp.exp(4 * normal(x.shape, seed=1))  # all decades
    want = oracles.dynamic_tree_8bit(np.float64(x), block)
    close(through(dynamic_tree_8bit(block=block), x), want, edges=2)


def test_dynamic_tree_has_256_values():
    table = oracles.dynamic_tree()
    np.testing.assert_allclose(dynamic_tree_values(), table, rtol=1e-14)
    assert len(set(table)) == 256
    x = jnp.asarray(table, jnp.float32)  # each value comes back, from its own code
    payload = dynamic_tree_8bit(block=None).encode(x, None)
    np.testing.assert_array_equal(payload.codes, np.arange(256))
    close(dynamic_tree_8bit(block=None).decode(payload, x, None), table)


@pytest.mark.parametrize("zero", ["positive", "negative"])
def test_signs_follow_their_oracles(zero):
    x = normal((999,)).at[::7].set(0.0)
    v = np.float64(x)
    close(through(scaled_sign(zero=zero), x), oracles.scaled_sign(v, zero))
    want = np.sign(oracles.scaled_sign(v, zero))
    np.testing.assert_array_equal(through(sign(zero=zero), x), want)


def test_casts_follow_their_oracles():
    x = normal((1500,)) * jnp.exp(3 * normal((1500,), seed=1))
    v = np.float64(x)
    close(through(fp16(), x), oracles.rounded(v, 11, 2.0**-24, 65504))
    close(through(bf16(), x), oracles.rounded(v, 8, 0.0, np.inf))
    for name, (precision, smallest, largest) in {
        "e4m3": (4, 2.0**-9, 448),
        "e5m2": (3, 2.0**-16, 57344),
    }.items():
        plain = oracles.rounded(v, precision, smallest, largest)
        close(through(fp8(format=name, scaled=False), x), plain)
        unit = np.float64(np.float32(largest) / np.abs(x).max())
        want = oracles.rounded(v * unit, precision, smallest, largest) / unit
        close(through(fp8(format=name), x), want, edges=2)


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
        if name != "sign":  # whose bits say plus or minus one
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


@pytest.mark.parametrize("name", CODES)
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
        again = np.asarray(q + left)
        if name in EXACT:
            np.testing.assert_array_equal(again, x)
        else:
            bound = 2.0**-22 * (np.abs(x) + np.abs(q) + 1e-30)
            assert np.all(np.abs(again - x) <= bound)
        if code.contracts and not code.stochastic:
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


UNBIASED = {
    "qsgd": (qsgd(levels=3, bucket=8), lambda v: oracles.qsgd_variance(v, 3, 8, "l2")),
    "qsgd max": (
        qsgd(levels=2, bucket=20, norm="max"),
        lambda v: oracles.qsgd_variance(v, 2, 20, "max"),
    ),
    "terngrad": (
        terngrad(clip=None),
        lambda v: np.abs(v).max() * np.abs(v) - v**2,
    ),
    "natural": (
        natural(),
        lambda v: (
            np.modf(2 * np.frexp(np.abs(v))[0])[0]
            * (1 - np.modf(2 * np.frexp(np.abs(v))[0])[0])
            * 4.0 ** (np.frexp(v)[1] - 1)
        ),
    ),
    "linear_8bit": (
        linear_8bit(rounding="random"),
        lambda v: oracles.qsgd_variance(v, 127, None, "max"),
    ),
}


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_with_the_papers_variance(name):
    code, variance = UNBIASED[name]
    x, draws = normal((24,), seed=5), 20000
    keys = jax.random.split(jax.random.key(0), draws)
    q = np.float64(jax.jit(jax.vmap(lambda key: through(code, x, key)))(keys))
    v = np.float64(x)
    expected = variance(v)
    sigma = np.sqrt(expected / draws)
    assert np.all(np.abs(q.mean(axis=0) - v) <= 5 * sigma + 1e-6)
    np.testing.assert_allclose(
        np.mean((q - v) ** 2, axis=0).sum(), expected.sum(), rtol=0.03
    )
    if name == "natural":
        assert np.all(expected <= v**2 / 8 * (1 + 1e-12))
    if name == "qsgd":
        d, s = 8, 3
        bound = min(d / s**2, np.sqrt(d) / s) * np.sum(v**2)
        assert expected.sum() <= bound
    if name == "terngrad":
        total = np.abs(v).max() * np.abs(v).sum() - np.sum(v**2)
        np.testing.assert_allclose(expected.sum(), total)


def test_terngrad_with_clipping_is_unbiased_for_what_it_clips():
    code, x = terngrad(clip=1.0), normal((24,), seed=5)
    keys = jax.random.split(jax.random.key(0), 5000)
    q = np.float64(jax.jit(jax.vmap(lambda key: through(code, x, key)))(keys))
    v = oracles.clipped(np.float64(x), 1.0)
    assert np.abs(v - x).max() > 0.1
    sigma = np.sqrt((np.abs(v).max() * np.abs(v) - v**2) / len(keys))
    assert np.all(np.abs(q.mean(axis=0) - v) <= 5 * sigma + 1e-6)


@pytest.mark.parametrize("name", CODES)
def test_recovers_after_nan_and_zero(name):
    code, x = CODES[name], normal((256,))
    before = through(code, x)
    for bad in (jnp.nan, jnp.inf):
        poisoned = np.asarray(through(code, x.at[100].set(bad)))
        if name != "sign":  # a bit has no third value
            assert not np.isfinite(poisoned[100])
        if name in BLOCKED:
            size = BLOCKED[name]
            rest = np.arange(256) // size != 100 // size
            np.testing.assert_array_equal(poisoned[rest], before[rest])
    through(code, jnp.zeros_like(x))
    np.testing.assert_array_equal(through(code, x), before)


def test_one_bit_columns_do_not_touch_each_other():
    x = normal((40, 6))
    bad = through(one_bit(), x.at[3, 2].set(jnp.nan))
    good = through(one_bit(), x)
    others = np.arange(6) != 2
    np.testing.assert_array_equal(bad[:, others], good[:, others])


def test_one_bit_levels_are_the_means_of_each_sign():
    x = normal((65, 9)).at[0].set(0.0)
    v, q = np.float64(x), np.zeros((65, 9))
    for j in range(9):
        for part in (v[:, j] >= 0, v[:, j] < 0):
            q[part, j] = v[part, j].mean()
    close(through(one_bit(), x), q)
    q = np.where(v >= 0, v[v >= 0].mean(), v[v < 0].mean())
    close(through(one_bit(levels="leaf"), x), q)


@pytest.mark.parametrize("share", [False, True])
def test_terngrad_shares_the_scale(share):
    code = terngrad(clip=None, share_scale=share)
    x = normal((3, 64)) * jnp.array([[1.0], [2.0], [5.0]])
    keys = jax.random.split(KEY, 3)
    payload = jax.vmap(code.encode, axis_name=comm.LANES)(x, keys)
    own = jnp.max(jnp.abs(x), axis=1, keepdims=True)
    want = jnp.broadcast_to(own.max(), own.shape) if share else own
    np.testing.assert_array_equal(payload.scale, want)


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
    assert bool(jnp.isfinite(mean).all())
    apart = float(jnp.linalg.norm(mean[0] - x["w"].mean(0)))
    if "sign" not in name and "one_bit" not in name and "tern" not in name:
        assert apart < 0.8 * float(jnp.linalg.norm(x["w"].mean(0)))


def test_feedback_takes_codes_that_contract():
    for name, code in CODES.items():
        if code.contracts:
            error_feedback(code)
        else:
            with pytest.raises(ValueError, match=r"feedback.*grow without bound"):
                error_feedback(code)
        loose = ("sign", "terngrad", "terngrad unclipped")
        assert code.contracts == (name not in (*loose, "linear_8bit random"))
    assert not qsgd(levels=1, bucket=4).contracts
    assert qsgd(levels=1, bucket=3).contracts
    assert not linear_8bit(rounding="random", block=4 * 127**2).contracts
    assert linear_8bit(rounding="random", block=4 * 127**2 - 1).contracts


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
        (lambda: qsgd(bucket=0), "bucket="),
        (lambda: qsgd(norm="l1"), "choose one of l2, max"),
        (lambda: terngrad(clip=0.0), "positive number"),
        (lambda: natural(rounding="up"), "choose one of random, nearest"),
        (lambda: linear_8bit(block=0), "block="),
        (lambda: dynamic_tree_8bit(block=-1), "block="),
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
