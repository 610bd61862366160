"""Compressed methods: which parts fit together, and what signs alone cannot do."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from composed import build
from hydra.errors import HydraException
from tiny import FEATURES, tiny

import parsgd
from parsgd import compressors, reducers
from parsgd.config.choices import choices, conf_dir
from parsgd.config.messages import explain, is_mistake
from parsgd.errors import UserError

CODES = choices(conf_dir())["compressor"]
FEEDBACK = choices(conf_dir())["feedback"]
# Its error may be larger than what it encodes.
EXPANDING = ("sign", "terngrad")
SMALL = ("task.model.features=[4]", "placement=vmap", "worker_batch=4", "samples=24")


REFUSED = [(code, f) for code in EXPANDING for f in FEEDBACK if f != "none"]
# The same codes in the other two are slow for what they would still find.
QUICK = [("top_k", f) for f in FEEDBACK]
QUICK += [(code, f) for code in CODES for f in ("ef", "none")]


TRAINED = [
    pytest.param(code, f, marks=[] if (code, f) in QUICK else pytest.mark.slow)
    for f in FEEDBACK
    for code in CODES
    if (code, f) not in REFUSED
]


@pytest.mark.parametrize(("code", "feedback"), TRAINED)
def test_B16_codes_with_feedback_train(code, feedback):
    options = ("strategy=compressed", f"compressor={code}", f"feedback={feedback}")
    made = build(*options, "workers=2", *SMALL)
    made.arguments.update(evaluations=1, train_examples=8)
    run = parsgd.fit(made.task, made.strategy, **made.arguments)
    assert run.status == "completed" and run.summary["steps"] == 3
    dense = run.summary["bytes_dense_per_round"]
    assert 0 < run.summary["bytes_per_round"] < dense


@pytest.mark.parametrize(("code", "feedback"), REFUSED)
def test_B16_pairs_that_would_diverge_are_refused(code, feedback):
    """While the config is built, so before anything is compiled."""
    options = ("strategy=compressed", f"compressor={code}", f"feedback={feedback}")
    with pytest.raises(UserError, match=r"feedback=none.*contracts=True"):
        build(*options, "workers=2", *SMALL)


@pytest.mark.parametrize("strategy", ["local_sgd", "block_momentum", "diloco"])
@pytest.mark.parametrize("code", EXPANDING)
def test_B16_outer_loops_refuse_them_too(strategy, code):
    options = (f"strategy=compressed_{strategy}", f"compressor={code}")
    with pytest.raises(UserError, match=r"feedback=none.*contracts=True"):
        build(*options, "feedback=ef", "workers=2", "local_steps=2", *SMALL)


@pytest.mark.parametrize(
    ("code", "contracting"),
    [
        (compressors.linear_8bit(rounding="random"), "linear_8bit with rounding="),
        (compressors.scaled_sign(norm="l2"), "norm l2 with norm='l1'"),
        (compressors.qsgd(levels=7), "with bucket_size below 196"),
        (
            compressors.top_k(values=compressors.qsgd(levels=7)),
            "top_k of qsgd(levels=7) with bucket_size below 196",
        ),
        (compressors.random_k(scaled=True), "scaled with scaled=False"),
        (compressors.fp8(scaled=False), "fp8(e4m3) with scaled=True"),
        (compressors.sign(), ""),
    ],
)
def test_B16_the_refusal_recommends_nothing_that_it_refuses(code, contracting):
    with pytest.raises(UserError) as error:
        parsgd.error_feedback(code)
    _, _, advice = str(error.value).partition("; use ")
    assert contracting in advice and "one_bit or natural" in advice
    bare = advice.replace(f"{code.name} with {code.contracts_with}", "")
    assert "linear_8bit" not in bare and "scaled_sign" not in bare
    for named in (compressors.one_bit, compressors.natural):
        parsgd.error_feedback(named())


def test_B16_what_a_compressor_says_makes_it_contract_does():
    for made in (
        compressors.linear_8bit(rounding="nearest"),
        compressors.scaled_sign(norm="l1"),
        compressors.qsgd(levels=7, bucket_size=195),
        compressors.top_k(values=compressors.qsgd(levels=7, bucket_size=195)),
        compressors.random_k(scaled=False),
        compressors.fp8(scaled=True),
    ):
        parsgd.error_feedback(made)


@pytest.mark.parametrize("code", CODES)
def test_C11_one_worker_runs_every_code_and_sends_nothing(code):
    feedback = "none" if code in EXPANDING else "ef"
    options = ("strategy=compressed", f"compressor={code}", f"feedback={feedback}")
    method = build(*options, "workers=1").strategy
    run = parsgd.fit(tiny(), method, worker_batch=8, rounds=6, evaluations=2)
    assert run.status == "completed" and run.summary["steps"] == 6
    assert run.summary["bytes_per_round"] == run.history[-1]["bytes"] == 0
    assert run.history[-1]["train_loss"] < run.history[0]["train_loss"]


LOOPS = ("local_sgd", "block_momentum", "diloco")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("number", "code"), [*enumerate(CODES)])
def test_C11_every_code_is_the_code_of_an_outer_loop(number, code, workers):
    feedback = "none" if code in EXPANDING else "ef"
    options = (f"strategy=compressed_{LOOPS[number % 3]}", f"compressor={code}")
    method = build(*options, f"feedback={feedback}", f"workers={workers}").strategy
    sizes = {"workers": workers, "local_steps": 2, "worker_batch": 4}
    run = parsgd.fit(tiny(), method, rounds=2, evaluations=1, **sizes)
    assert run.status == "completed" and run.summary["steps"] == 4
    assert (run.summary["bytes_per_round"] > 0) == (workers > 1)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(run.readout))


@pytest.mark.parametrize(
    "reducer",
    [reducers.power_sgd(2), parsgd.error_feedback(compressors.top_k(density=0.1))],
    ids=["power_sgd", "top_k"],
)
def test_B12_without_matrices_it_is_synchronous_sgd(reducer):
    def losses(params, batch):
        return jnp.square(batch.x @ params["b"] + params["a"] - batch.y)

    task = tiny()._replace(
        init=lambda key: ({"a": jnp.float32(0.5), "b": jnp.zeros(FEATURES)}, {}),
        loss=lambda params, model, batch, key: (jnp.mean(losses(params, batch)), model),
        metrics=lambda params, model, batch: {"loss": losses(params, batch)},
    )
    optimizer = optax.sgd(0.02, 0.9)
    ours, sync = (
        parsgd.fit(task, method, workers=4, worker_batch=4, epochs=2, evaluations=4)
        for method in (
            parsgd.compressed_sgd(optimizer, reducer=reducer),
            parsgd.sync_sgd(optimizer),
        )
    )
    for a, b in zip(ours.history, sync.history, strict=True):
        assert a["test_loss"] == pytest.approx(b["test_loss"], rel=1e-6)
    for name in ("a", "b"):
        np.testing.assert_allclose(
            ours.readout[name], sync.readout[name], rtol=1e-6, atol=1e-7
        )
    sent = ours.summary["bytes_per_round"]
    assert sent == ours.summary["bytes_dense_per_round"] == 1.5 * 4 * (FEATURES + 1)


def test_A9_clipping_in_a_config_is_before_or_after_the_compressed_average():
    # The largest entry of each worker is all that top_k sends here.
    grads = jnp.zeros((2, 2, 4)).at[0, 0, 0].set(3.0).at[1, 1, 2].set(4.0)
    found = {}
    for when in ("clip_before", "clip_after", None):
        options = ["strategy=compressed", "compressor=top_k", "workers=2"]
        options += [f"strategy.{when}=1.0"] if when else []
        strategy = build(*options, "optimizer.learning_rate=1.0").strategy

        def step(g, strategy=strategy):
            x = {"w": jnp.zeros((2, 4))}
            return -strategy.local({"w": g}, strategy.init(x), x)[0]["w"]

        moved = jax.jit(jax.vmap(step, axis_name=parsgd.comm.LANES))(grads)[0]
        found[when] = [moved[0, 0], moved[1, 2]]
        assert float(jnp.abs(moved).sum()) == pytest.approx(float(sum(found[when])))
    np.testing.assert_allclose(found["clip_before"], [0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(found["clip_after"], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(found[None], [1.5, 2.0], rtol=1e-6)


@pytest.mark.parametrize("strategy", ["local_sgd", "block_momentum", "diloco"])
@pytest.mark.parametrize("code", ["top_k", "bf16"])
def test_local_steps_and_compression_compose(strategy, code):
    options = (f"strategy=compressed_{strategy}", f"compressor={code}")
    made = build(*options, "workers=3", "local_steps=2", *SMALL)
    made.arguments.update(evaluations=1, train_examples=8)
    run = parsgd.fit(made.task, made.strategy, **made.arguments)
    assert run.status == "completed" and run.summary["rounds"] == 1
    assert run.summary["bytes_per_round"] < run.summary["bytes_dense_per_round"]


@pytest.mark.parametrize("group", ["compressor", "feedback"])
@pytest.mark.parametrize("strategy", ["sync_sgd", "diloco", "dgc"])
def test_B16_a_strategy_without_exchangeable_parts_says_which_have(strategy, group):
    choice = {"compressor": "qsgd", "feedback": "ef21"}[group]
    with pytest.raises(HydraException) as error:
        build(f"strategy={strategy}", f"{group}={choice}")
    assert is_mistake(error.value)
    text = explain(error.value)
    assert f"the strategy has no exchangeable {group}" in text
    for file in (conf_dir() / "strategy").glob("*.yaml"):
        allowed = f"/{group}:" in file.read_text()
        assert allowed == bool(re.search(rf"\b{file.stem}\b", text)), file.stem


def _descend(strategy, gradient, x, steps):
    state, path, local = strategy.init(x), [], jax.jit(strategy.local)
    for t in range(steps):
        x, state = local(gradient(x, t), state, x)
        path.append(np.asarray(x))
    return path


SIGN_OF_STEP = parsgd.compressors.scaled_sign()


def test_signs_alone_stay_on_a_line_that_feedback_leaves():
    """``f = eps |x + y| + |x - y|``: every sign is along (1, -1), so x + y stays.

    The second counter-example of the EF-signSGD paper.
    """
    eps, lr, start = 0.5, 0.01, jnp.array([1.0, 1.0])

    def gradient(x, t):
        def side(v):
            return jnp.where(v >= 0, 1.0, -1.0)

        along = side(x[0] + x[1]) * jnp.array([1.0, 1.0])
        return eps * along + side(x[0] - x[1]) * jnp.array([1.0, -1.0])

    def value(x):
        return eps * abs(x[0] + x[1]) + abs(x[0] - x[1])

    signs = parsgd.sign_sgd_majority(optax.sgd(lr))
    feedback = parsgd.data_parallel(
        optax.chain(optax.sgd(lr), parsgd.error_feedback(SIGN_OF_STEP, bucket=True))
    )
    stuck = _descend(signs, gradient, start, 600)
    moved = _descend(feedback, gradient, start, 600)
    np.testing.assert_allclose([x.sum() for x in stuck], 2.0, atol=1e-4)
    assert min(value(x) for x in stuck) >= 2 * eps - 1e-3
    assert max(value(x) for x in moved[-50:]) < 0.1


def test_signs_alone_climb_where_most_gradients_point_up():
    """``f = x / 4``, gradients 4 (one in four) and -1: the first counter-example."""
    draws = np.where(np.random.default_rng(0).random(800) < 0.25, 4.0, -1.0)
    lr, start = 0.01, jnp.zeros(16)

    def gradient(x, t):
        return jnp.full(16, draws[t], jnp.float32)

    def final(strategy):
        return _descend(strategy, gradient, start, 800)[-1][0]

    feedback = parsgd.data_parallel(
        optax.chain(optax.sgd(lr), parsgd.error_feedback(SIGN_OF_STEP, bucket=True))
    )
    assert final(parsgd.sign_sgd_majority(optax.sgd(lr))) > 2
    assert final(feedback) < -1
    # Of equal coordinates nothing is lost, so it is SGD.
    plain = final(parsgd.single(optax.sgd(lr)))
    np.testing.assert_allclose(final(feedback), plain, rtol=1e-4)


def test_signs_alone_stay_on_a_line_of_smooth_losses_that_one_model_fits():
    """``f_i = <a_i, x>^2``, ``a_i = +-(1, -1) + eps (1, 1)``: the third.

    A gradient of either has the signs of (1, -1), so x + y stays, though x = 0 is best
    for both.
    """
    eps, lr, steps, start = 0.5, 0.02, 300, jnp.array([1.003, 0.997])
    a = np.array([[1.0, -1.0], [-1.0, 1.0]], np.float32) + np.float32(eps)
    draws = np.random.default_rng(0).integers(2, size=steps)

    def gradient(x, t):
        return jnp.asarray(2 * (a[draws[t]] @ np.asarray(x)) * a[draws[t]])

    def value(x):
        return float(np.square(a @ x).sum())

    feedback = parsgd.data_parallel(
        optax.chain(optax.sgd(lr), parsgd.error_feedback(SIGN_OF_STEP, bucket=True))
    )
    stuck = _descend(parsgd.sign_sgd_majority(optax.sgd(lr)), gradient, start, steps)
    moved = _descend(feedback, gradient, start, steps)
    np.testing.assert_allclose([x.sum() for x in stuck], 2.0, atol=1e-4)
    assert min(map(value, stuck)) >= 2 * (2 * eps) ** 2 - 1e-3
    assert value(moved[-1]) < 1e-3 * value(np.asarray(start))


@pytest.mark.parametrize("values", ["bf16", compressors.bf16])
def test_values_of_top_k_that_are_no_code_are_refused(values):
    with pytest.raises(UserError, match=r"values=.*: give a Compressor"):
        compressors.top_k(values=values)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (compressors.fp16(), "summed on the way"),
        (compressors.top_k(values=compressors.random_k()), "draw the same"),
    ],
)
def test_two_sided_says_why_it_is_not_for_a_code(code, why):
    with pytest.raises(UserError, match=rf"two_sided=True with .*{why}"):
        parsgd.error_feedback(code, two_sided=True)


def test_B5_a_leaf_of_half_precision_is_not_sent_as_more_bytes():
    """What is encoded is float32: of 60 % of the entries 1.2 times a bfloat16 leaf."""
    code = parsgd.Compressor(
        encode=lambda x, key: x.reshape(-1)[: x.size * 6 // 10],
        decode=lambda sent, like, key: (
            jnp.pad(sent, (0, like.size - sent.size))
            .reshape(like.shape)
            .astype(like.dtype)
        ),
        name="first",
        contracts=True,
    )
    for dtype, sent in ((jnp.float32, 240), (jnp.bfloat16, 200)):
        x = jnp.ones((10, 10), dtype)
        reducer = parsgd.error_feedback(code)
        state = jax.eval_shape(reducer.init, x)
        found = parsgd.traffic.trace(reducer.update, 2, x, state)
        assert found.bytes == sent, dtype
