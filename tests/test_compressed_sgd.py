"""Compressed methods: which parts fit together, and what signs alone cannot do."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from composed import build

import parsgd
from parsgd.config.choices import choices, conf_dir
from parsgd.errors import UserError

CODES = choices(conf_dir())["compressor"]
FEEDBACK = choices(conf_dir())["feedback"]
# Its error may be larger than what it encodes.
EXPANDING = ("terngrad",)
SMALL = ("task.model.features=[4]", "placement=vmap", "worker_batch=4", "samples=24")


@pytest.mark.parametrize("feedback", FEEDBACK)
@pytest.mark.parametrize("code", CODES)
def test_B16_codes_with_feedback_train_or_are_refused(code, feedback):
    """Refused while the config is built, so before anything is compiled."""
    options = ("strategy=compressed", f"compressor={code}", f"feedback={feedback}")
    if code in EXPANDING and feedback != "none":
        with pytest.raises(UserError, match=r"feedback=none.*one_bit, scaled_sign"):
            build(*options, "workers=2", *SMALL)
        return
    made = build(*options, "workers=2", *SMALL)
    if feedback in ("ef21", "ef_momentum") and code != "top_k":
        return  # the same code through another of these two is nothing new
    made.arguments.update(evaluations=1, train_examples=8)
    run = parsgd.fit(made.task, made.strategy, **made.arguments)
    assert run.status == "completed" and run.summary["steps"] == 3
    dense = run.summary["bytes_dense_per_round"]
    assert 0 < run.summary["bytes_per_round"] < dense


@pytest.mark.parametrize("strategy", ["local_sgd", "block_momentum", "diloco"])
@pytest.mark.parametrize("code", ["top_k", "bf16"])
def test_local_steps_and_compression_compose(strategy, code):
    options = (f"strategy=compressed_{strategy}", f"compressor={code}")
    made = build(*options, "workers=3", "local_steps=2", *SMALL)
    made.arguments.update(evaluations=1, train_examples=8)
    run = parsgd.fit(made.task, made.strategy, **made.arguments)
    assert run.status == "completed" and run.summary["rounds"] == 1
    assert run.summary["bytes_per_round"] < run.summary["bytes_dense_per_round"]


def test_what_is_not_exchangeable_says_where_it_is():
    with pytest.raises(Exception, match="Could not override 'compressor'"):
        build("strategy=sync_sgd", "compressor=qsgd")


def _descend(strategy, gradient, x, steps):
    state, path = strategy.init(x), []
    for t in range(steps):
        x, state = strategy.local(gradient(x, t), state, x)
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
