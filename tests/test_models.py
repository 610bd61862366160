"""Models: the adaptors (linen, nnx, pairs), convolution by patches, sizes, GPT."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from parsgd.errors import UserError
from parsgd.models import (
    CNN,
    GPT,
    MLP,
    LogisticRegression,
    Model,
    PatchConv,
    as_model,
    mlp_6_9m,
    mlp_258k,
)

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


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic=True):
        x = nn.Dense(16)(x.reshape(x.shape[0], -1))
        x = nn.BatchNorm(use_running_average=deterministic, momentum=0.5)(x)
        x = nn.Dropout(0.5, deterministic=deterministic)(x)
        return nn.Dense(3)(x)


class NnxNet(nnx.Module):
    def __init__(self, width, *, rngs):
        self.layers = nnx.List([nnx.Linear(64, width, rngs=rngs)])
        self.norm = nnx.BatchNorm(width, momentum=0.5, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers:
            x = layer(x)
        return self.out(self.drop(self.norm(x)))


MODULES = {
    "linen": LinenNet(),
    "nnx": functools.partial(NnxNet, 16),
}


@pytest.fixture(params=MODULES.values(), ids=MODULES.keys(), scope="module")
def net(request):
    model = as_model(request.param)
    return model, *jax.jit(model.init)(KEY, X)


def test_E5_dropout_is_a_function_of_the_key(net):
    model, params, state = net
    run = functools.partial(model.apply, params, state, X, train=True)
    first, again, other = (run(key=jax.random.key(k))[0] for k in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_evaluation_is_deterministic_and_leaves_the_state_alone(net):
    model, params, state = net
    first, after = model.apply(params, state, X, key=None, train=False)
    second, _ = model.apply(params, state, X, key=jax.random.key(5), train=False)
    np.testing.assert_array_equal(first, second)
    jax.tree.map(np.testing.assert_array_equal, after, state)


def test_batch_statistics_move_half_way_to_the_batch(net):
    model, params, state = net
    _, after = model.apply(params, state, X, key=KEY, train=True)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    # Momentum 0.5 from mean 0 and variance 1: what layer 1 really puts out decides.
    [first] = [w for w in jax.tree.leaves(params) if w.shape == (64, 16)]
    hidden = np.asarray(X.reshape(6, -1) @ first)
    expected = {"mean": hidden.mean(0) / 2, "var": (1 + hidden.var(0)) / 2}
    found = {
        str(getattr(path[-1], "key", path[-1])): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(after)[0]
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
    # Evaluation uses them.
    before, _ = model.apply(params, state, X, key=None, train=False)
    now, _ = model.apply(params, after, X, key=None, train=False)
    assert not np.allclose(before, now)


def test_vmap_over_workers_inside_scan_equals_a_loop(net):
    model, params, state = net
    workers = 3
    keys = jax.random.split(KEY, (4, workers))
    batches = jax.random.normal(jax.random.key(2), (4, workers, *X.shape))

    def step(params, state, x, key):
        def loss(p):
            logits, new = model.apply(p, state, x, key=key, train=True)
            return jnp.mean(jnp.square(logits)), new

        grads, state = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), state

    def body(carry, batch):
        return jax.vmap(step)(*carry, *batch), None

    copies = jax.tree.map(lambda a: jnp.stack([a] * workers), (params, state))
    together, _ = jax.jit(lambda c: jax.lax.scan(body, c, (batches, keys)))(copies)
    one = jax.jit(step)
    for w in range(workers):
        alone = (params, state)
        for t in range(4):
            alone = one(*alone, batches[t, w], keys[t, w])
        jax.tree.map(
            lambda a, b, w=w: np.testing.assert_allclose(a[w], b, rtol=1e-4, atol=1e-5),
            together,
            alone,
        )


def test_nnx_parameters_follow_the_key():
    model = as_model(functools.partial(NnxNet, 16))
    weights = [jax.tree.leaves(model.init(jax.random.key(k), X)[0]) for k in (1, 1, 2)]
    by_name = as_model(lambda rngs: NnxNet(16, rngs=rngs)).init(jax.random.key(1), X)[0]
    jax.tree.map(np.testing.assert_array_equal, weights[0], jax.tree.leaves(by_name))
    assert all(np.array_equal(a, b) for a, b in zip(*weights[:2], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(*weights[1:], strict=True))
    assert all(isinstance(leaf, jax.Array) for leaf in weights[0])


def test_nnx_module_with_several_streams_draws_from_each():
    class Noisy(nnx.Module):
        def __init__(self, rngs):
            self.out = nnx.Linear(64, 3, rngs=rngs)
            self.a = nnx.Dropout(0.5, rngs=rngs)
            self.b = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            x = jnp.ones((x.shape[0], 64))
            return jnp.stack([self.a(x), self.b(x)])

    model = as_model(Noisy)
    params, state = model.init(KEY, X)
    (a, b), _ = model.apply(params, state, X, key=KEY, train=True)
    assert state == {} and not np.array_equal(a, b)


def test_linen_module_with_its_own_stream_and_collection():
    class Counter(nn.Module):
        @nn.compact
        def __call__(self, x, train=False):
            count = self.variable("counter", "calls", lambda: jnp.zeros(()))
            if train:
                count.value += 1.0
                x = x + jax.random.normal(self.make_rng("noise"), x.shape)
            self.sow("intermediates", "x", x)
            return nn.Dense(3)(x.reshape(x.shape[0], -1))

    model = as_model(Counter())
    params, state = model.init(KEY, X)
    assert set(state) == {"counter"}
    for _ in range(2):
        _, state = model.apply(params, state, X, key=KEY, train=True)
    assert state["counter"]["calls"] == 2.0


def test_pair_of_functions_with_key_and_mode():
    def init(key, x):
        return jax.random.normal(key, (x.shape[1], 2))

    def apply(params, x, *, key, train):
        return x @ params + (jax.random.normal(key, ()) if train else 0.0)

    model = as_model([init, apply])
    x = jnp.ones((3, 4))
    params, state = model.init(KEY, x)
    quiet, _ = model.apply(params, state, x, key=None, train=False)
    noisy, _ = model.apply(params, state, x, key=KEY, train=True)
    np.testing.assert_allclose(quiet, x @ params)
    assert not np.allclose(quiet, noisy)


def test_model_is_returned_as_it_is():
    model = Model(lambda key, x: ({}, {}), lambda p, s, x, *, key, train: (x, s))
    assert as_model(model) is model


@pytest.mark.parametrize(
    ("module", "advice"),
    [
        (LinenNet, "pass an instance, LinenNet"),
        (3, "pass a flax linen module"),
        ((1, 2), "pass a flax linen module"),
    ],
)
def test_what_is_no_model_is_told_what_is(module, advice):
    with pytest.raises(UserError, match=advice):
        as_model(module)


def test_nnx_instance_is_told_to_come_as_its_class():
    with pytest.raises(UserError, match="pass its class"):
        as_model(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))


def test_callable_that_builds_no_module_is_named():
    with pytest.raises(UserError, match="returned int"):
        as_model(lambda rngs: 3).init(KEY, X)


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

    np.testing.assert_allclose(
        jax.jit(net.apply)({"params": params}, x),
        by_definition(params, x),
        rtol=1e-4,
        atol=1e-5,
    )


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
