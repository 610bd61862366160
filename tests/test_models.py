"""Models: what users have (linen, nnx, pairs of functions) as two pure functions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn, nnx

from parsgd.errors import UserError
from parsgd.models import Model, as_model

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (6, 8, 8, 1))


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


def test_nnx_arrays_that_are_plain_attributes_are_state():
    class Scaled(nnx.Module):
        def __init__(self, rngs):
            self.out = nnx.Linear(64, 3, rngs=rngs)
            self.scale = jnp.arange(64.0)[None]
            self.shifts = nnx.List([jnp.ones((1, 64))])
            self.kept = nnx.data((jnp.zeros((1, 3)),))

        def __call__(self, x):
            self.shifts[0] = self.shifts[0] + 1.0
            x = x.reshape(len(x), -1) * self.scale + self.shifts[0]
            return self.out(x) + self.kept[0]

    model = as_model(Scaled)
    params, state = model.init(KEY, X)
    assert params.keys() == {"out"} and state.keys() == {"scale", "shifts", "kept"}
    abstract = jax.eval_shape(model.init, KEY, X)
    assert jax.tree.structure(abstract) == jax.tree.structure((params, state))
    run = jax.jit(functools.partial(model.apply, key=KEY, train=True))
    for steps in (2.0, 3.0):
        logits, state = run(params, state, X)
        x = X.reshape(6, -1) * jnp.arange(64.0)[None] + steps
        kernel, bias = params["out"]["kernel"], params["out"]["bias"]
        np.testing.assert_allclose(
            logits, x @ kernel + bias[None], rtol=1e-3, atol=1e-3
        )
        assert (state["shifts"][0] == steps).all()


def test_nnx_streams_that_are_split_for_layers_in_a_scan():
    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.drop(x), None

    class Deep(nnx.Module):
        def __init__(self, rngs):
            several = nnx.vmap(Layer, in_axes=(nnx.StateAxes({...: 0}),))
            self.layers = nnx.split_rngs(splits=3)(several)(rngs)
            self.out = nnx.Linear(64, 3, rngs=rngs)

        def __call__(self, x):
            step = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0))
            return step(jnp.ones((x.shape[0], 64)), self.layers)[0]

    model = as_model(Deep)
    params, state = model.init(KEY, X)
    kept, _ = model.apply(params, state, X, key=KEY, train=True)
    other, _ = model.apply(params, state, X, key=jax.random.key(7), train=True)
    # Were the masks of the three layers equal, half would be left, not an eighth.
    share = float((kept != 0).mean())
    assert 0.05 < share < 0.25 and not np.array_equal(kept, other)


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
def test_what_an_nnx_module_sows_is_no_state():
    class Watched(nnx.Module):
        def __init__(self, rngs):
            self.out = nnx.Linear(64, 3, rngs=rngs)

        def __call__(self, x):
            x = self.out(jnp.ones((x.shape[0], 64)))
            self.sow(nnx.Intermediate, "h", x)
            return x

    model = as_model(Watched)
    params, state = model.init(KEY, X)
    _, after = model.apply(params, state, X, key=KEY, train=True)
    assert state == after == {} and params.keys() == {"out"}


def test_batch_norm_named_by_its_own_keyword_trains():
    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x, use_running_average=True):
            return nn.BatchNorm(use_running_average=use_running_average)(x)

    model = as_model(Normed())
    params, state = model.init(KEY, X)
    _, same = model.apply(params, state, X, key=None, train=False)
    _, moved = model.apply(params, state, X, key=KEY, train=True)
    before, after = (
        tree["batch_stats"]["BatchNorm_0"]["mean"] for tree in (state, moved)
    )
    np.testing.assert_array_equal(same["batch_stats"]["BatchNorm_0"]["mean"], before)
    np.testing.assert_allclose(after, 0.01 * X.mean(axis=(0, 1, 2)), rtol=1e-4)


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
