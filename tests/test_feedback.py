"""Residuals of error feedback: conserved, checked, whole after what is not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import parsgd
from parsgd import comm


def test_B1_error_feedback_conserves():
    reducer = parsgd.error_feedback(parsgd.one_bit())
    rng = np.random.default_rng(0)
    state = reducer.init({"w": jnp.zeros((6, 5)), "b": jnp.zeros(5)})
    total, sent = np.zeros((6, 5)), np.zeros((6, 5))
    for step in range(100):
        g = {"w": rng.normal(size=(6, 5)).astype(np.float32), "b": np.ones(5, "f")}
        old = dict(state.error)
        out, state = reducer.update(jax.tree.map(jnp.asarray, g), state)
        (path,) = state.error
        np.testing.assert_allclose(
            out["w"] + state.error[path], g["w"] + old[path], rtol=1e-5, atol=1e-5
        )
        np.testing.assert_array_equal(out["b"], g["b"])
        total, sent = total + g["w"], sent + np.asarray(out["w"], np.float64)
        if step == 0:
            assert np.abs(state.error[path]).max() > 0.1
    np.testing.assert_allclose(sent + state.error[path], total, atol=1e-3)


def test_B10_residual_of_another_model_is_refused():
    reducer = parsgd.error_feedback(parsgd.one_bit())
    state = reducer.init({"w": jnp.zeros((6, 5))})
    with pytest.raises(ValueError, match=r"\['v'\].*another model"):
        reducer.update({"v": jnp.zeros((6, 5))}, state)
    with pytest.raises(ValueError, match=r"shape \(6, 6\)"):
        reducer.update({"w": jnp.zeros((6, 6))}, state)


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("code", ["one_bit", "top_k", "scaled_sign", "linear_8bit"])
def test_residuals_survive_a_step_that_is_not_finite(code, two_sided):
    compressor = getattr(parsgd.compressors, code)()
    reducer = parsgd.error_feedback(compressor, two_sided=two_sided)

    def steps(grads):
        state = reducer.init({"w": grads[0]})
        kept = []
        for g in grads:
            out, state = reducer.update({"w": g}, state)
            kept.append((out, state.error, state.exchange.owner_error))
        return kept

    g = np.random.default_rng(0).normal(size=(3, 3, 40, 12)).astype(np.float32)
    g[1, 1, 5, 5] = np.nan  # one entry of one worker's second gradient
    lanes = jax.jit(jax.vmap(steps, axis_name=comm.LANES))
    first, second, third = lanes(jnp.array(g))
    assert not np.isfinite(second[0]["w"]).all(axis=(1, 2)).any()
    for before, after in zip(first[1:], second[1:], strict=True):
        for path, kept in before.items():
            assert np.any(kept)
            np.testing.assert_array_equal(after[path], kept)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(third))


def test_the_summed_estimates_of_ef21_stay_their_mean_after_nan():
    reducer = parsgd.ef21(parsgd.compressors.top_k(density=0.3))

    def steps(grads):
        state = reducer.init({"w": grads[0]})
        for g in grads:
            _, state = reducer.update({"w": g}, state)
        return state

    g = np.random.default_rng(0).normal(size=(3, 4, 5, 6)).astype(np.float32)
    g[2, 1] = np.nan
    state = jax.vmap(steps, axis_name=comm.LANES)(jnp.array(g))
    (h,), (mean,) = state.estimate.values(), state.mean.values()
    np.testing.assert_allclose(mean[0], h.mean(0), atol=1e-6)


def test_ef21_of_a_moving_average_follows_its_loop():
    """EF21-SGDM, Fatkhullin et al. 2023, algorithm 1, from zeros."""
    eta, kept = 0.2, 3
    reducer = optax.chain(
        parsgd.reducers.local_momentum(1 - eta, dampening=1 - eta),
        parsgd.ef21(parsgd.compressors.top_k(density=kept / 12)),
    )

    def steps(grads):
        state = reducer.init({"w": grads[0]})
        out = []
        for g in grads:
            mean, state = reducer.update({"w": g}, state)
            out.append(mean["w"])
        return jnp.stack(out)

    g = np.random.default_rng(0).normal(size=(3, 6, 3, 4)).astype(np.float32)
    ours = jax.vmap(steps, axis_name=comm.LANES)(jnp.array(g))
    v, h = np.zeros((3, 12)), np.zeros((3, 12))
    for t in range(6):
        v = (1 - eta) * v + eta * g[:, t].reshape(3, 12)
        for own, estimate in zip(v, h, strict=True):
            change = own - estimate
            largest = np.argsort(-np.abs(change))[:kept]
            estimate[largest] += change[largest]
        for worker in range(3):
            np.testing.assert_allclose(
                ours[worker, t].reshape(-1), h.mean(0), rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("name", ["decay", "dampening"])
def test_a_momentum_that_would_grow_is_refused(name):
    with pytest.raises(ValueError, match=rf"local_momentum: {name}=1.0 must be in"):
        parsgd.reducers.local_momentum(**{"decay": 0.5, name: 1.0})


@pytest.mark.parametrize(
    "reducer",
    [
        parsgd.error_feedback(parsgd.compressors.top_k(density=0.2)),
        parsgd.reducers.power_sgd(1),
    ],
    ids=["top_k", "power_sgd"],
)
def test_a_residual_stays_finite_where_the_average_leaves_half_precision(reducer):
    """40,000 and what is left of it, twice: above the largest float16, 65,504."""
    w = 40000.0 * jnp.kron(jnp.diag(jnp.array([1.0, 0.97])), jnp.ones((4, 4)))
    g = {"w": w.astype(jnp.float16)}
    state = reducer.init(g)
    for _ in range(6):
        out, state = reducer.update(g, state)
        assert np.isfinite(state.error["['w']"]).all()
    assert np.any(out["w"])


@pytest.mark.parametrize("code", ["bf16", "fp16", "random_k", "top_k"])
def test_B1_the_common_estimate_of_ef21_does_not_drift(code):
    """Half precision cannot hold the sum of what the workers sent: 1 + 1/512."""
    options = {"density": 0.5} if code.endswith("_k") else {}
    reducer = parsgd.ef21(getattr(parsgd.compressors, code)(**options))
    g = np.random.default_rng(0).normal(size=(2, 30, 8, 6)).astype(np.float32)
    g[:, :, 0, 0] = np.array([1, 1 / 512])[:, None]

    def steps(grads):
        def step(state, x):
            return reducer.update({"w": x}, state)[::-1]

        state, outs = jax.lax.scan(step, reducer.init({"w": grads[0]}), grads)
        return outs["w"][-1], state

    last, state = jax.jit(jax.vmap(steps, axis_name=comm.LANES))(jnp.array(g))
    estimates = np.asarray(state.estimate["['w']"], np.float64)
    np.testing.assert_allclose(last[0], estimates.mean(0), rtol=1e-5, atol=1e-5)
