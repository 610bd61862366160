"""Every algorithm against its oracle, and the identities that relate them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from zoo import ZOO

import parsgd
from parsgd import UserError, comm
from parsgd.compressors import scaled_sign, top_k
from parsgd.core import init_state, no_sync, phases, run_round
from parsgd.placement.spmd import spmd
from parsgd.training.plan import make_plan
from parsgd.training.segments import segments

LR, MU = 0.1, 0.8


def loss(params, model, target, key):
    # The log of the hyperbolic cosine, whose gradient is tanh, as in the oracles.
    far = jax.tree.map(jnp.subtract, params, target)
    parts = [jnp.sum(jnp.logaddexp(d, -d)) for d in jax.tree.leaves(far)]
    return sum(parts), model


def simulate(algorithm, x, c, *, workers, h, optimizer_steps):
    """Models after each round, workers as lanes, on the oracles' problem."""
    stages = phases(algorithm)
    plan = make_plan(
        workers, workers=workers, worker_batch=1, local_steps=h,
        epochs=optimizer_steps,
    )  # fmt: skip

    place = parsgd.place(workers, kind="vmap")

    def lanes(fn, shared_in):
        return jax.jit(spmd(fn, place, shared_in, False))

    first = stages[0].strategy
    state = lanes(lambda x: init_state(first, x, {}, jax.random.key(0)), (True,))(x)
    step = 0
    for part in segments(plan, stages):
        strategy = stages[part.phase].strategy

        def one_round(state, targets, strategy=strategy):
            state, *_ = run_round(strategy, loss, state, lambda _, t: t, None, targets)
            return state, strategy.readout(state.params, state.strategy)

        run = lanes(one_round, (False, False))
        for _ in range(part.rounds):
            targets = {
                k: np.moveaxis(v[step : step + part.local_steps], 1, 0)
                for k, v in c.items()
            }
            state, out = run(state, targets)
            step += part.local_steps
            yield out


def problem(workers, steps, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"w": (5, 7), "b": (7,), "k": (3, 2, 2, 6)}
    x = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    c = {
        k: rng.normal(size=(steps, workers, *s)).astype(np.float32)
        for k, s in shapes.items()
    }
    return x, c


@pytest.mark.parametrize("workers", [1, 3, 4])
@pytest.mark.parametrize("name", ZOO)
def test_follows_its_oracle(name, workers):
    row, steps = ZOO[name], 10
    x, c = problem(workers, steps)
    algorithm = row.make(optax.sgd(LR, MU))
    ours = simulate(
        algorithm, x, c, workers=workers, h=row.local_steps, optimizer_steps=steps
    )
    theirs = row.oracle(
        {k: v.astype(np.float64) for k, v in x.items()},
        {k: v.astype(np.float64) for k, v in c.items()},
        workers=workers, h=row.local_steps, steps=steps, lr=LR, mu=MU,
    )  # fmt: skip
    for got, want in zip(ours, theirs, strict=True):
        for k in want:
            for w in range(workers):
                np.testing.assert_allclose(got[k][w], want[k], rtol=2e-5, atol=2e-6)
        for k in want:  # the readout has the same bits on every worker
            assert all(np.array_equal(got[k][0], v) for v in got[k])


def last(algorithm, workers, h, steps, seed=0):
    x, c = problem(workers, steps, seed)
    *_, out = simulate(algorithm, x, c, workers=workers, h=h, optimizer_steps=steps)
    return {k: np.asarray(v[0]) for k, v in out.items()}


def assert_same(a, b, exact=False):
    for k in a:
        if exact:
            np.testing.assert_array_equal(a[k], b[k])
        else:
            np.testing.assert_allclose(a[k], b[k], rtol=1e-6, atol=2e-6)


def test_C7_local_sgd_of_one_step_is_sync_sgd():
    heavy_ball = optax.sgd(LR, MU)
    sync = last(parsgd.sync_sgd(heavy_ball), 4, 1, 8)
    assert_same(last(parsgd.local_sgd(heavy_ball), 4, 1, 8), sync)
    assert_same(last(parsgd.post_local_sgd(heavy_ball, switch_step=8), 4, 3, 8), sync)


@pytest.mark.parametrize("workers", [3, 4])
def test_C2_C7_trivial_outer_loops_are_local_sgd(workers):
    inner = optax.sgd(LR)
    local = last(parsgd.local_sgd(inner), workers, 3, 9)
    plain = parsgd.outer_loop(inner, optax.chain(parsgd.all_reduce(), optax.sgd(1.0)))
    assert_same(last(plain, workers, 3, 9), local)
    diloco = parsgd.diloco(inner, outer_learning_rate=1.0, outer_momentum=0.0)
    assert_same(last(diloco, workers, 3, 9), local)
    assert_same(last(parsgd.block_momentum(inner, eta=0.0), workers, 3, 9), local)


def test_block_momentum_is_slow_momentum():
    """BMUF(eta, 1) is heavy ball or Nesterov momentum on the pseudo-gradient."""
    inner, eta = optax.sgd(LR), 0.6
    heavy = optax.chain(parsgd.all_reduce(), optax.sgd(1.0, eta))
    assert_same(
        last(parsgd.block_momentum(inner, eta=eta), 4, 3, 12),
        last(parsgd.outer_loop(inner, heavy), 4, 3, 12),
    )
    x, c = problem(4, 12)
    nesterov = optax.chain(parsgd.all_reduce(), optax.sgd(1.0, eta, nesterov=True))
    ours = parsgd.block_momentum(inner, eta=eta, nesterov=True)
    shifted = parsgd.outer_loop(inner, nesterov)
    # Same look-ahead points; the paper's model is eta D behind them.
    ours = ours._replace(readout=lambda params, state: state.anchor)
    a = list(simulate(ours, x, c, workers=4, h=3, optimizer_steps=12))
    b = list(simulate(shifted, x, c, workers=4, h=3, optimizer_steps=12))
    assert_same(a[-1], b[-1])


@pytest.mark.parametrize(
    ("options", "gain"),
    [
        ({}, 8.0),
        ({"nesterov": True}, 8.0),
        ({"nesterov": True, "gain": "cntk"}, 15.0),
        ({"nesterov": True, "gain": "fairseq"}, 15.0),
        ({"gain": "cntk"}, 8.0),
    ],
)
def test_block_gain(options, gain):
    """In a steady state a block moves the model by 8 (or 15) times G at W = 8."""
    strategy = parsgd.block_momentum(optax.sgd(1.0), **options)

    def step(params, state):
        params, state = strategy.local({"x": jnp.float32(-1.0)}, state, params)
        params, state = strategy.sync(params, state)
        return params, state

    lanes = jax.jit(jax.vmap(step, axis_name=comm.LANES))
    init = jax.vmap(lambda p: (p, strategy.init(p)), axis_name=comm.LANES)
    params, state = init({"x": jnp.zeros(8)})
    for _ in range(400):
        before = params["x"][0]
        params, state = lanes(params, state)
    np.testing.assert_allclose(params["x"][0] - before, gain, rtol=1e-3)


@pytest.mark.parametrize(
    "code",
    [parsgd.one_bit(), scaled_sign(), top_k(density=0.2)],
    ids=lambda code: code.name,
)
def test_models_and_residuals_of_the_step_are_dense_sgd_on_a_linear_loss(code):
    """Gradients do not depend on x: what was not applied yet is in the residual."""
    steps = optax.chain(optax.sgd(LR), parsgd.error_feedback(code))
    strategy = parsgd.data_parallel(steps)
    x, g = problem(4, 12)

    def worker(x, g):
        def step(carry, g):
            x, state = strategy.local(g, carry[1], carry[0])
            return (x, state), (x, state[1].error)

        return jax.lax.scan(step, (x, strategy.init(x)), g)[1]

    lanes = jax.vmap(worker, (None, 1), axis_name=comm.LANES)
    models, residuals = jax.device_get(jax.jit(lanes)(x, g))
    assert residuals.keys() == {"['w']", "['k']"}
    for k in x:
        want = x[k] - LR * np.cumsum(g[k].astype(np.float64).mean(1), axis=0)
        residual = residuals.get(f"['{k}']", np.zeros(1))
        got = np.mean(models[k], 0, np.float64) + np.mean(residual, 0, np.float64)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=2e-6)
        if k != "b":
            assert np.abs(np.mean(models[k], 0) - want).max() > 1e-3


def test_EF21_that_sends_everything_is_sync_sgd():
    heavy_ball = optax.sgd(LR, MU)
    # In one message: arrays that would not become smaller are averaged as they are.
    reducer = parsgd.ef21(top_k(density=1.0), bucket=True)
    whole = parsgd.compressed_sgd(heavy_ball, reducer=reducer)
    assert_same(last(whole, 4, 1, 8), last(parsgd.sync_sgd(heavy_ball), 4, 1, 8))


def test_C5_default_block_momentum_depends_on_workers():
    for workers in (2, 4, 8):
        default = last(parsgd.block_momentum(optax.sgd(LR)), workers, 2, 6)
        explicit = parsgd.block_momentum(optax.sgd(LR), eta=1 - 1 / workers)
        assert_same(default, last(explicit, workers, 2, 6), exact=True)


@pytest.mark.parametrize("name", [name for name, row in ZOO.items() if row.plain])
def test_C11_one_worker_is_the_plain_optimizer(name):
    row = ZOO[name]
    optimizer = optax.sgd(LR) if row.resets else optax.sgd(LR, MU)
    x, c = problem(1, 9)
    params, state = x, optimizer.init(x)

    @jax.jit
    def step(params, state, target):
        grads = jax.grad(loss, has_aux=True)(params, {}, target, None)[0]
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for t in range(9):
        params, state = step(params, state, {k: v[t, 0] for k, v in c.items()})
    got = last(row.make(optimizer), 1, row.local_steps, 9)
    assert_same(got, params, exact=True)


@pytest.mark.parametrize(
    "name", [name for name, row in ZOO.items() if not row.per_worker]
)
def test_A2_same_data_on_all_workers_is_one_worker(name):
    row, steps = ZOO[name], 8
    x, c = problem(1, steps)
    many = {k: np.repeat(v, 4, axis=1) for k, v in c.items()}
    algorithm = row.make(optax.sgd(LR, MU))
    runs = [
        list(simulate(algorithm, x, cs, workers=w, h=row.local_steps,
                      optimizer_steps=steps))
        for w, cs in ((1, c), (4, many))
    ]  # fmt: skip
    for k in x:
        np.testing.assert_allclose(
            runs[0][-1][k][0], runs[1][-1][k][0], rtol=1e-5, atol=1e-6
        )


def test_C8_momentum_policies_keep_counts_whole():
    optimizer = optax.adam(optax.linear_schedule(0.1, 0.0, 100))
    counts = {}
    for policy in ("keep", "average", "reset"):
        strategy = parsgd.local_sgd(optimizer, momentum_policy=policy)

        def two_rounds(params, grads, strategy=strategy):
            state = strategy.init(params)
            for _ in range(2):
                for _ in range(3):
                    params, state = strategy.local(grads, state, params)
                params, state = strategy.sync(params, state)
            return state

        state = jax.vmap(two_rounds, (None, 0), axis_name=comm.LANES)(
            {"w": jnp.ones(3)}, {"w": jnp.arange(12.0).reshape(4, 3)}
        )
        adam, schedule = state
        assert adam.count.dtype == schedule.count.dtype == jnp.int32
        counts[policy] = (int(adam.count[0]), int(schedule.count[0]))
        mu = np.asarray(adam.mu["w"])
        if policy == "reset":
            assert not mu.any()
        elif policy == "average":
            assert (mu == mu[0]).all() and mu.any()
        else:
            assert len({*mu[:, 0].tolist()}) == 4
    # The schedule goes on where the optimizer itself starts anew.
    assert counts == {"keep": (6, 6), "average": (6, 6), "reset": (0, 6)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: parsgd.local_sgd(optax.sgd(1), momentum_policy="mean"),
            "momentum_policy='mean': choose one of keep, average",
        ),
        (lambda: parsgd.block_momentum(optax.sgd(1), eta=1.0), r"\[0, 1\)"),
        (lambda: parsgd.block_momentum(optax.sgd(1), gain="kaldi"), "fairseq"),
        (lambda: parsgd.one_bit(levels="row"), "column"),
        (lambda: parsgd.post_local_sgd(optax.sgd(1), switch_step=-1), "switch_step=-1"),
        (lambda: parsgd.one_bit_sgd(optax.sgd(1), start_step=-5), "start_step=-5"),
        (
            lambda: phases((parsgd.Phase(0, parsgd.single(optax.sgd(1)), 0),)),
            "local_steps=0",
        ),
        (lambda: phases((parsgd.Phase(3, parsgd.single(optax.sgd(1))),)), "start at 0"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_only_every_step_methods_have_no_sync():
    for name, row in ZOO.items():
        every = all(p.strategy.sync is no_sync for p in phases(row.make(optax.sgd(1))))
        assert every == (row.local_steps == 1), name


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ({"start": 0, "local_steps": 2.5}, "a phase's local_steps=2.5"),
        ({"start": 0, "local_steps": 0}, "a phase's local_steps=0"),
        ({"start": 0.5}, "a phase's start=0.5"),
        ({"start": 3}, "phases must start at 0"),
    ],
)
def test_phases_with_odd_numbers_are_refused(phase, message):
    strategy = parsgd.sync_sgd(optax.sgd(0.1))
    with pytest.raises(parsgd.UserError, match=message):
        parsgd.core.phases((parsgd.Phase(strategy=strategy, **phase),))


def test_numbers_of_numpy_are_whole_too():
    strategy = parsgd.sync_sgd(optax.sgd(0.1))
    (phase,) = parsgd.core.phases((parsgd.Phase(np.int64(0), strategy, np.int32(4)),))
    assert phase.local_steps == 4


def test_an_outer_learning_rate_may_be_a_schedule_of_rounds():
    def rate(rounds):
        return jnp.take(jnp.float32([0.5, 0.25]), rounds)

    method = parsgd.diloco(optax.sgd(LR), outer_learning_rate=rate, outer_momentum=0.5)
    x, state = jnp.zeros(2), jax.vmap(method.init)(jnp.zeros(2))
    sync = jax.vmap(method.sync, axis_name=comm.LANES)
    for wanted in (-0.5 * (0.5 * 2 + 2), -1.5 - 0.25 * (0.5 * 3 + 2)):
        x, state = sync(x - jnp.array([1.0, 3.0]), state)  # d = 2 in each round
        np.testing.assert_allclose(x, [wanted, wanted], rtol=1e-6)
    constant = parsgd.diloco(optax.sgd(LR), outer_learning_rate=lambda rounds: 0.7)
    assert_same(last(constant, 3, 3, 9), last(parsgd.diloco(optax.sgd(LR)), 3, 3, 9))


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "fast", True, None])
def test_outer_rates_are_positive_numbers(value):
    with pytest.raises(UserError, match=f"^outer_learning_rate={value}: give a posit"):
        parsgd.diloco(optax.sgd(LR), outer_learning_rate=value)
    with pytest.raises(UserError, match=f"^zeta={value}: give a positive, finite num"):
        parsgd.block_momentum(optax.sgd(LR), zeta=value)
    assert parsgd.diloco(optax.sgd(LR), outer_learning_rate=np.float32(0.5))
    assert parsgd.block_momentum(optax.sgd(LR), zeta=jnp.float32(0.5))
