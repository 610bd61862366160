"""State of local optimizers, and of outer loops, from one round to the next."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import tiny

import parsgd
from parsgd import comm, reducers

WEIGHTS = {"w": jnp.ones(3)}
GRADS = {"w": jnp.arange(12.0).reshape(4, 3)}


def rounds(optimizer, count, h=3, grads=GRADS):
    """Parameters and state after some rounds of local SGD that resets its momentum."""
    strategy = parsgd.local_sgd(optimizer, momentum_policy="reset")

    def worker(params, grads):
        state = strategy.init(params)
        for _ in range(count):
            for _ in range(h):
                params, state = strategy.local(grads, state, params)
            params, state = strategy.sync(params, state)
        return params, state

    return jax.vmap(worker, (None, 0), axis_name=comm.LANES)(WEIGHTS, grads)


def test_a_reset_leaves_schedules_of_weight_decay():
    decay = optax.linear_schedule(0.0, 0.1, 100)
    _, (adam, decayed, _) = rounds(optax.adamw(0.1, weight_decay=decay), 2)
    assert (int(adam.count[0]), int(decayed.count[0])) == (0, 6)


def test_a_reset_leaves_gathered_gradients():
    """Four gradients to a step, of which a round has three: the rest go on."""
    params, state = rounds(optax.MultiSteps(optax.sgd(0.1, 0.9), 4), 3)
    assert (int(state.gradient_step[0]), int(state.mini_step[0])) == (2, 1)
    # Two steps of the mean gradient; the momentum of the first has been forgotten.
    want = 1 - 2 * 0.1 * np.asarray(GRADS["w"]).mean(0)
    np.testing.assert_allclose(params["w"][0], want, rtol=1e-6)


def test_a_reset_draws_no_noise_twice():
    def noise(count):
        params, _ = rounds(optax.noisy_sgd(0.1, eta=1.0, key=0), count, h=1)
        return np.asarray(params["w"][0])

    one, two, three = (noise(n) for n in (1, 2, 3))
    assert not np.allclose(two - one, three - two, atol=1e-3)


@pytest.mark.parametrize(
    "conditional", [optax.conditionally_mask, optax.conditionally_transform]
)
def test_a_reset_leaves_the_count_of_a_condition(conditional):
    """The first two steps act, and none of later rounds."""
    optimizer = conditional(optax.adam(0.1), lambda step: step < 2)
    _, state = rounds(optimizer, 3)
    assert int(state.step[0]) == 9 and int(state.inner_state[0].count[0]) == 0
    apart = [rounds(optimizer, count)[0]["w"][0] for count in (1, 3)]
    if conditional is optax.conditionally_mask:  # else a gradient passes as it is
        np.testing.assert_array_equal(*apart)


def test_a_reset_leaves_the_schedules_of_schedule_free_and_ademamix():
    rate = optax.linear_schedule(0.0, 0.1, 100)
    _, state = rounds(optax.contrib.schedule_free_adamw(rate), 2)
    assert (int(state.step_count[0]), float(state.weight_sum[0])) == (1 + 6, 0)
    assert int(state.base_optimizer_state[0].count[0]) == 0
    _, (state, *_) = rounds(optax.contrib.ademamix(0.1, alpha=rate), 2)
    assert (int(state.count_m2[0]), int(state.count[0])) == (6, 0)
    assert not np.asarray(state.m2["w"]).any()


@pytest.mark.parametrize("policy", ["keep", "reset"])
def test_before_its_switch_post_local_sgd_has_momentum(policy):
    """And is synchronous SGD, whatever becomes of it later."""
    optimizer = optax.sgd(0.1, 0.9)
    late = parsgd.post_local_sgd(optimizer, switch_step=99, momentum_policy=policy)
    ends = [
        parsgd.fit(
            tiny(), method, workers=3, worker_batch=4, epochs=1, evaluations=1
        ).readout
        for method in (late, parsgd.sync_sgd(optimizer))
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *ends)


def test_one_worker_keeps_the_velocity_of_its_block():
    """It is not applied, but more workers that go on from here have it."""
    strategy = parsgd.block_momentum(optax.sgd(0.1))
    state = strategy.init(WEIGHTS)
    grads = {"w": GRADS["w"][1]}
    params, state = strategy.local(grads, state, WEIGHTS)
    after, state = strategy.sync(params, state)
    np.testing.assert_array_equal(after["w"], params["w"])
    (_, filtered) = state.outer
    np.testing.assert_allclose(filtered.velocity["w"], -0.1 * grads["w"], rtol=1e-6)


def test_a_reset_leaves_what_is_delayed():
    """With one step to a round each gradient arrives in the next one."""
    params, _ = rounds(optax.chain(reducers.delay(1), optax.sgd(0.1)), 4, h=1)
    want = 1 - 3 * 0.1 * np.asarray(GRADS["w"]).mean(0)
    np.testing.assert_allclose(params["w"][0], want, rtol=1e-6)


def test_G1_a_reset_leaves_who_was_at_fault():
    broken = {"w": GRADS["w"].at[3].set(jnp.nan)}
    for optimizer, count in (
        (reducers.skip_nonfinite(optax.sgd(0.1, 0.9)), "own"),
        (optax.apply_if_finite(optax.sgd(0.1, 0.9), 100), "notfinite_count"),
    ):
        params, state = rounds(optimizer, 2, grads=broken)
        assert getattr(state, count).tolist() == [0, 0, 0, 6], count
        assert np.isfinite(params["w"]).all()


def test_block_momentum_in_half_precision_adds_up_small_pushes():
    """Like float32 until the model itself is rounded: D is the sum of 100 of them."""
    pushes = jnp.full((100, 1), 1e-3, jnp.bfloat16)
    ends = {}
    for dtype in (jnp.bfloat16, jnp.float32):
        outer = parsgd.strategies.block_filter(eta=0.99)
        state = outer.init(jnp.zeros(1, dtype))
        for push in pushes.astype(dtype):
            step, state = outer.update(-push, state)
        assert step.dtype == dtype and state.velocity.dtype == jnp.float32
        ends[dtype] = float(state.velocity[0])
    assert ends[jnp.bfloat16] == pytest.approx(ends[jnp.float32], rel=1e-5)
