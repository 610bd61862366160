"""The built-in networks: convolution by patches, sizes, GPT."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from parsgd.errors import UserError
from parsgd.models import (
    CNN,
    GPT,
    MLP,
    LogisticRegression,
    PatchConv,
    as_model,
    mlp_6_9m,
    mlp_258k,
)
from parsgd.models.pooling import max_pool

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (6, 8, 8, 1))


def size(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def shapes_of(module, *shape, dtype=jnp.float32):
    return jax.eval_shape(module.init, KEY, jnp.zeros(shape, dtype))["params"]


def drawn(module, x, scale=0.3):
    """Variables of a module without compiling its `init`, which takes seconds."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda a: jnp.asarray(rng.normal(size=a.shape, scale=scale), a.dtype),
        jax.eval_shape(module.init, KEY, x),
    )


@pytest.mark.parametrize(
    ("kernel_size", "strides", "padding"),
    [
        (3, 1, "SAME"),
        (1, 2, "SAME"),
        ((2, 5), (2, 3), "SAME"),
        (4, 3, "SAME"),
        (3, 1, "VALID"),
        ((2, 5), 2, "VALID"),
        (3, (1, 2), 1),
        ((5, 2), (3, 2), ((0, 2), (1, 0))),
    ],
)
def test_patch_conv_equals_flax_conv(kernel_size, strides, padding):
    pair = (kernel_size,) * 2 if isinstance(kernel_size, int) else kernel_size
    ours = PatchConv(4, kernel_size, strides, padding)
    theirs = nn.Conv(4, pair, strides, padding)
    x = jax.random.normal(jax.random.key(3), (2, 9, 8, 3))
    variables = drawn(theirs, x)
    assert jax.tree.structure(variables) == jax.tree.structure(drawn(ours, x))

    @functools.partial(jax.jit, static_argnums=0)
    def value_and_gradients(module, variables, x):
        y = module.apply(variables, x)
        loss = lambda v, x: jnp.sum(jnp.sin(module.apply(v, x)))
        return y, jax.grad(loss, argnums=(0, 1))(variables, x)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        value_and_gradients(ours, variables, x),
        value_and_gradients(theirs, variables, x),
    )


def test_patch_conv_starts_where_flax_conv_starts():
    ours, theirs = PatchConv(4, 3), nn.Conv(4, (3, 3))
    jax.tree.map(np.testing.assert_array_equal, ours.init(KEY, X), theirs.init(KEY, X))


def test_patch_conv_says_why_a_window_does_not_fit():
    with pytest.raises(UserError, match="window of 9 does not fit an image of 8"):
        PatchConv(4, 9, padding="VALID").init(KEY, X)
    with pytest.raises(UserError, match="choose 'SAME', 'VALID'"):
        PatchConv(4, 3, padding="same").init(KEY, X)
    with pytest.raises(UserError, match="pair of sizes"):
        PatchConv(4, (3, 3, 3)).init(KEY, X)


@pytest.mark.parametrize("side", [8, 9])
def test_cnn_equals_its_definition_in_lax(side):
    x = jax.random.normal(KEY, (2, side, side, 3))
    net = CNN(features=[4, 6], kernel_size=3, dense=[5], classes=2)
    params = drawn(net, x)["params"]

    @jax.jit
    def by_definition(params, y):
        for i in range(2):
            conv = params[f"PlaneConv_{i}"]
            dims = ("NHWC", "HWIO", "NHWC")
            y = jax.lax.conv_general_dilated(
                y, conv["kernel"], (1, 1), "SAME", dimension_numbers=dims
            )
            y = nn.relu(y + conv["bias"].reshape(1, 1, 1, -1))
            y = nn.max_pool(y, (2, 2), (2, 2))
        dense, head = params["Dense_0"], params["head"]
        y = y.reshape(2, -1) @ dense["kernel"] + dense["bias"].reshape(1, -1)
        return nn.relu(y) @ head["kernel"] + head["bias"].reshape(1, -1)

    def by_net(params, x):
        return net.apply({"params": params}, x)

    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    close(jax.jit(by_net)(params, x), by_definition(params, x))
    # Also the gradient of the pooling, which is its own.
    found, wanted = (
        jax.jit(jax.grad(lambda *a, f=f: jnp.sum(jnp.sin(f(*a))), (0, 1)))(params, x)
        for f in (by_net, by_definition)
    )
    jax.tree.map(close, found, wanted)


def test_of_equal_maxima_the_first_takes_the_gradient():
    tile = jnp.array([[0.0, 2.0], [2.0, 2.0]]).reshape(1, 2, 2, 1)
    planes = jnp.pad(tile, ((0, 0), (0, 1), (0, 1), (0, 0)))  # 3 x 3: the rest is cut
    grad = jax.grad(lambda x: 3 * max_pool(x).sum())(planes)
    np.testing.assert_array_equal(grad[0, :, :, 0], [[0, 3, 0], [0, 0, 0], [0, 0, 0]])
    # One that is no number reaches somebody.
    grad = jax.grad(lambda x: max_pool(x).sum())(planes * jnp.nan)
    assert float(jnp.abs(grad).sum()) == 1


def test_pooling_shows_nan_in_planes_of_any_size():
    """XLA's maximum drops it in large ones: a diverged network would look finite."""
    planes = jnp.zeros((8, 28, 28, 32)).at[3, 5, 5, 3].set(jnp.nan)
    found = jax.jit(max_pool)(planes)
    assert np.argwhere(np.isnan(found)).tolist() == [[3, 2, 2, 3]]
    assert np.isnan(jax.jit(max_pool)(planes * jnp.nan)).all()


def test_cnn_with_batch_norm_keeps_statistics_and_no_useless_bias():
    net = CNN(features=[4], dense=[], batch_norm=True, classes=2)
    variables = drawn(net, X)
    assert "bias" not in variables["params"]["PlaneConv_0"]
    params, stats = variables.pop("params"), variables["batch_stats"]
    run = jax.jit(as_model(net).apply, static_argnames="train")
    _, after = run(params, variables, X, key=KEY, train=True)
    before, now = (s["BatchNorm_0"]["mean"] for s in (stats, after["batch_stats"]))
    assert not np.allclose(before, now)


def test_topology_study_networks_have_exactly_its_parameters():
    assert size(shapes_of(mlp_258k(classes=3), 1, 847)) == 258_432
    assert size(shapes_of(mlp_6_9m(classes=3), 1, 4800)) == 6_885_376
    assert size(shapes_of(mlp_258k(classes=10), 1, 784)) == 242_752
    assert size(shapes_of(mlp_6_9m(classes=10), 1, 784)) == 2_774_784
    assert mlp_258k().dropout == 0.2 and mlp_6_9m().dropout == 0.3


def test_mlp_of_lists_equals_mlp_of_tuples_and_an_empty_one_is_linear():
    assert MLP(features=[8, 4]) == MLP(features=(8, 4))
    assert hash(MLP(features=[8, 4])) == hash(MLP(features=(8, 4)))
    assert set(shapes_of(MLP(features=[], classes=2), 1, 5)) == {"head"}


def test_logistic_regression_starts_at_zero():
    params = LogisticRegression(classes=4).init(KEY, X)["params"]
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(params))


def test_gpt_is_causal_and_uses_positions():
    net = GPT(width=16, layers=2, heads=2, classes=11)
    tokens = jax.random.randint(KEY, (2, 9), 0, 11)
    variables = drawn(net, tokens)
    run = jax.jit(net.apply)
    logits = run(variables, tokens)
    changed = run(variables, tokens.at[:, 5].set((tokens[:, 5] + 1) % 11))
    np.testing.assert_allclose(logits[:, :5], changed[:, :5], rtol=1e-5, atol=1e-6)
    assert not np.allclose(logits[:, 5:], changed[:, 5:])
    same = run(variables, jnp.ones((2, 9), jnp.int32))[0]
    assert not np.allclose(same[3], same[4])


def test_gpt_reads_bytes_as_it_reads_other_whole_numbers():
    net = GPT(width=16, layers=1, heads=2, classes=300)
    tokens = jnp.array([[3, 255, 44, 0]], jnp.uint8)
    variables = drawn(net, tokens)
    same = net.apply(variables, tokens.astype(jnp.int32))
    np.testing.assert_array_equal(net.apply(variables, tokens), same)


def test_gpt_attention_equals_one_query_at_a_time():
    from parsgd.models.gpt import _attention

    qkv = jax.random.normal(KEY, (1, 5, 3 * 8))
    out = _attention(qkv, heads=2)
    q, k, v = (np.asarray(qkv)[0].reshape(5, 3, 2, 4)[:, i] for i in range(3))
    for t in range(5):
        for h in range(2):
            w = np.exp(k[: t + 1, h] @ q[t, h] / 2.0)
            expected = (w / w.sum()) @ v[: t + 1, h]
            np.testing.assert_allclose(
                out[0, t, 4 * h : 4 * h + 4], expected, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MLP(features=[0]), "features=0"),
        (lambda: MLP(dropout=1.0), "dropout=1.0"),
        (lambda: MLP().init(KEY, X), "set classes"),
        (lambda: CNN(features=[8, -1]), "at least 1"),
        (lambda: CNN(classes=2).init(KEY, jnp.ones((1, 30))), "use an MLP"),
        (lambda: CNN(classes=2).init(KEY, jnp.ones((1, 3, 3, 1))), "at least 4 pixels"),
        (lambda: GPT(width=30, heads=4), "use width=32"),
        (lambda: GPT(classes=9).init(KEY, jnp.ones((1, 4))), "not tokens"),
        (lambda: GPT().init(KEY, jnp.ones((1, 4), jnp.int32)), "vocabulary"),
    ],
)
def test_sizes_that_cannot_work_are_named(build, message):
    with pytest.raises(UserError, match=message):
        build()
