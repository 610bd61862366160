"""`fit`: sizes, budgets, exact averages, records, divergence, accumulation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import scalar, tiny

import parsgd
from parsgd.training.engine import Engine
from parsgd.training.segments import Segment, stretches


def test_C1_C6_rounds_and_the_last_short_one():
    calls = []
    base = parsgd.local_sgd(optax.sgd(0.1))

    def sync(params, state):
        jax.debug.callback(lambda: calls.append(1))
        return base.sync(params, state)

    run = parsgd.fit(
        tiny(48), base._replace(sync=sync), workers=1, worker_batch=4, local_steps=4,
        epochs=1, evaluations=1,
    )  # fmt: skip
    jax.effects_barrier()
    assert run.summary["steps"] == 12 and run.summary["rounds"] == len(calls) == 3
    run = parsgd.fit(tiny(40), base, workers=2, worker_batch=2, local_steps=4, epochs=1)
    assert (run.summary["steps"], run.summary["rounds"]) == (10, 3)
    assert run.history[-1]["spread"] > 0  # measured before the last synchronisation


def several(count):
    """Least squares whose weight is the sum of ``count`` parameters."""
    task = scalar(np.arange(48) / 16)

    def summed(params):
        return {"w": sum(params[name] for name in sorted(params))}

    return task._replace(
        init=lambda key: ({f"w{i}": jnp.float32(i) for i in range(count)}, {}),
        loss=lambda params, *rest: task.loss(summed(params), *rest),
        metrics=lambda params, *rest: task.metrics(summed(params), *rest),
    )


def two_groups():
    """An optimizer for two groups of parameters, one of them with momentum."""
    return optax.partition(
        {"even": optax.sgd(0.01), "odd": optax.sgd(0.02, 0.9)},
        lambda params: {k: ("even", "odd")[int(k[1:]) % 2] for k in params},
    )


@pytest.mark.parametrize("make", [parsgd.local_sgd, parsgd.diloco])
@pytest.mark.parametrize(
    ("leaves", "optimizer"),
    [(1, optax.sgd(0.01)), (5, optax.sgd(0.01)), (5, two_groups())],
    ids=["one leaf", "five leaves", "two groups"],
)
def test_C1_rounds_are_counted_once_whatever_the_parameters(leaves, optimizer, make):
    steps = []
    base = make(optimizer)

    def local(grads, state, params):
        params, inner = base.local(grads, state[0], params)
        return params, (inner, state[1] + 1)

    def sync(params, state):
        jax.debug.callback(lambda step: steps.append(int(step)), state[1])
        params, inner = base.sync(params, state[0])
        return params, (inner, state[1])

    counted = base._replace(
        init=lambda params: (base.init(params), jnp.int32(0)),
        local=local,
        sync=sync,
        readout=lambda params, state: base.readout(params, state[0]),
    )
    run = parsgd.fit(
        several(leaves), counted, worker_batch=4, local_steps=4, epochs=1,
        evaluations=1,
    )  # fmt: skip
    jax.effects_barrier()
    assert steps == [4, 8, 12]
    assert (run.summary["steps"], run.summary["rounds"]) == (12, 3)


@pytest.mark.parametrize(
    "make",
    [
        parsgd.local_sgd,
        lambda opt: parsgd.diloco(opt, outer_learning_rate=1.0, outer_momentum=0.0),
        lambda opt: parsgd.block_momentum(opt, eta=0.0),
    ],
    ids=["local_sgd", "diloco", "block_momentum"],
)
def test_C2_the_loss_of_a_quadratic_falls_in_every_round(make):
    task = scalar(1 + np.arange(32) / 32)
    run = parsgd.fit(
        task, make(optax.sgd(0.02)), workers=4, worker_batch=2, local_steps=2,
        rounds=8, evaluations=8,
    )  # fmt: skip
    losses = [record["train_loss"] for record in run.history]
    assert len(losses) == 9 and all(np.diff(losses) < 0)


def test_post_local_takes_single_steps_first():
    run = parsgd.fit(
        tiny(), parsgd.post_local_sgd(optax.sgd(0.1), switch_step=6), workers=2,
        worker_batch=2, local_steps=5, epochs=1, evaluations=30,
    )  # fmt: skip
    steps = [r["step"] for r in run.history]
    assert steps == [0, 1, 2, 3, 4, 5, 6, 11, 16, 21, 24]


@pytest.mark.parametrize("evaluations", [1, 3, 10, 30])
def test_evaluations_are_spaced_by_steps_where_rounds_differ(evaluations):
    def ends(*run):
        parts = stretches(run, evaluations)
        return [sum(part.rounds for part in stretch) for stretch in parts]

    # 105 single steps, then 115 more in rounds of 16.
    run = [Segment(0, 1, 105), Segment(1, 16, 7), Segment(1, 3, 1)]
    bounds = np.cumsum(ends(*run))
    assert len({*bounds}) == len(bounds) == evaluations and bounds[-1] == 113
    steps = np.cumsum([s.local_steps for s in run for _ in range(s.rounds)])
    if evaluations < 30:  # with more, several are nearest to the end of one round
        for i, bound in enumerate(bounds):
            away = np.abs(steps - 220 * (i + 1) / evaluations)
            assert away[bound - 1] == away.min()
    assert max(np.diff([0, *steps[bounds - 1]])) <= 220 / evaluations + 16
    # Rounds of one H are shared out by their number, also where the last is short.
    for equal in ([Segment(0, 4, 83)], [Segment(0, 4, 82), Segment(0, 1, 1)]):
        shares = [round(83 * (i + 1) / evaluations) for i in range(evaluations)]
        assert [*np.cumsum(ends(*equal))] == shares


def test_long_rounds_leave_as_many_evaluations_as_were_asked_for():
    for run in ([(1, 100), (64, 2)], [(64, 2), (1, 100)], [(50, 1), (1, 9), (50, 1)]):
        run = [Segment(i, *sizes) for i, sizes in enumerate(run)]
        rounds = sum(part.rounds for part in run)
        for count in range(1, rounds + 2):
            parts = [*stretches(run, count)]
            assert len(parts) == min(count, rounds) and all(parts)
            done = sum(part.steps for stretch in parts for part in stretch)
            assert done == sum(part.steps for part in run)


def test_B14_dense_start_is_sync_sgd_to_the_bit():
    options = {"workers": 4, "worker_batch": 2, "epochs": 1, "evaluations": 12}
    sync = parsgd.fit(tiny(), parsgd.sync_sgd(optax.sgd(0.1)), **options)
    for start, equal in ((0, 1), (4, 5), (99, 13)):
        late = parsgd.one_bit_sgd(optax.sgd(0.1), start_step=start)
        run = parsgd.fit(tiny(), late, **options)
        same = [
            a["train_loss"] == b["train_loss"]
            for a, b in zip(sync.history, run.history, strict=True)
        ]
        assert same == [True] * equal + [False] * (13 - equal)
        dense = min(start, 12) * sync.summary["bytes_per_round"]
        assert run.history[min(start, 12)]["bytes"] == pytest.approx(dense)


def test_I5_a_step_sees_the_workers_own_batch():
    shapes = []

    def loss(params, model, batch, key):
        shapes.append(batch.x.shape)
        return jnp.mean(params["w1"]) * jnp.mean(batch.x), model

    task = tiny()._replace(loss=loss)
    for place in ("vmap", "shard_map"):
        parsgd.fit(
            task,
            parsgd.local_sgd(optax.sgd(0.1)),
            workers=4,
            worker_batch=3,
            rounds=1,
            placement=place,
        )
    assert {*shapes} == {(3, 9)}


def test_A9_clipping_before_and_after_the_reduction():
    grads = jnp.array([[3.0, 0.0], [0.0, 4.0]])
    found = {}
    for when in ("clip_before", "clip_after"):
        strategy = parsgd.compressed_sgd(
            optax.sgd(1.0), reducer=parsgd.all_reduce(), **{when: 1.0}
        )

        def step(g, strategy=strategy):
            x = jnp.zeros(2)
            return -strategy.local(g, strategy.init(x), x)[0]

        found[when] = jax.vmap(step, axis_name=parsgd.comm.LANES)(grads)[0]
    np.testing.assert_allclose(found["clip_before"], [0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(found["clip_after"], [0.6, 0.8], rtol=1e-6)


def test_D1_equal_budgets_for_every_number_of_workers():
    losses = []
    for workers in (1, 2, 4):
        run = parsgd.fit(
            tiny(), parsgd.sync_sgd(optax.sgd(0.1)), workers=workers, global_batch=8,
            epochs=2,
        )  # fmt: skip
        assert run.summary["samples"] == 192 and run.summary["steps"] == 24
        losses.append(run.history[-1]["train_loss"])
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


def test_G4_divergence_is_a_result():
    """A loss that is not finite for max_bad_rounds in a row ends the run."""
    blowing_up = parsgd.local_sgd(optax.sgd(float("inf")))
    run = parsgd.fit(
        tiny(), blowing_up, workers=2, worker_batch=2, local_steps=2, epochs=5,
        max_bad_rounds=4,
    )  # fmt: skip
    assert run.status == "diverged" and "4 rounds in a row" in run.reason
    assert run.history[-1]["round"] < 30 * 2


def test_G4_a_short_run_that_ends_on_nan_has_diverged():
    run = parsgd.fit(
        tiny(), parsgd.sync_sgd(optax.sgd(float("nan"))), worker_batch=4, rounds=2
    )
    assert run.status == "diverged" and "last 1 round" in run.reason


@pytest.mark.parametrize(
    ("bad", "reason"),
    [(3, "the final model has parameters"), (2, "training loss not finite in the")],
)
def test_G4_an_update_that_makes_nan_is_not_saved(tmp_path, bad, reason):
    """Also where no loss tells: that of a batch is from before its update."""
    rate = lambda step: jnp.where(step == bad, jnp.nan, 0.1)
    run = parsgd.fit(
        tiny(), parsgd.sync_sgd(optax.sgd(rate)), worker_batch=4, rounds=4,
        evaluations=1, checkpoints=parsgd.Checkpoints(tmp_path / "a", every_rounds=1),
    )  # fmt: skip
    assert np.isfinite(run.history[-1]["batch_loss"]) == (bad == 3)
    assert (run.status, run.summary["stopped"]) == ("diverged", "diverged")
    assert run.reason.startswith(reason)
    steps = {int(p.name) for p in (tmp_path / "a").iterdir() if p.name.isdigit()}
    assert max(steps) == bad


def test_target_accuracy_stops_early():
    run = parsgd.fit(
        parsgd.digits(), parsgd.sync_sgd(optax.sgd(0.1, 0.9)), workers=2,
        worker_batch=16, epochs=20, evaluations=40, target_accuracy=0.9,
    )  # fmt: skip
    assert run.summary["stopped"] == "target_accuracy"
    accuracy = [r["test_accuracy"] for r in run.history]
    assert accuracy[-1] >= 0.9 > max(accuracy[:-1]) and len(accuracy) < 20


def test_target_accuracy_can_hold_at_the_start():
    run = parsgd.fit(
        tiny(),
        parsgd.sync_sgd(optax.sgd(0.1)),
        worker_batch=4,
        rounds=5,
        target_accuracy=0.0,
    )
    assert run.summary["stopped"] == "target_accuracy"
    assert [record["round"] for record in run.history] == [0]


def test_same_seed_same_result_and_I6_fit_twice():
    task, strategy = tiny(), parsgd.diloco(optax.adam(1e-2))
    options = {"workers": 4, "worker_batch": 2, "local_steps": 3, "epochs": 2}
    runs = [parsgd.fit(task, strategy, seed=s, **options) for s in (0, 0, 1)]
    drop = lambda h: [{k: v for k, v in r.items() if k != "seconds"} for r in h]
    assert drop(runs[0].history) == drop(runs[1].history)
    assert drop(runs[0].history) != drop(runs[2].history)
    assert np.isfinite(np.asarray(runs[0].readout["w1"])).all()


@pytest.mark.parametrize("kind", ["vmap", "shard_map"])
def test_I6_the_users_own_parameters_stay_usable(kind):
    task, strategy = tiny(), parsgd.diloco(optax.sgd(0.1, 0.9))
    mine, _ = task.init(jax.random.key(0))
    kept = jax.tree.map(np.array, mine)
    options = {"workers": 4, "worker_batch": 2, "local_steps": 3, "rounds": 4}

    def from_here(start):
        own = task._replace(init=lambda key: (start, {}))
        return parsgd.fit(own, strategy, placement=kind, **options)

    first, second = from_here(mine), from_here(mine)
    third = from_here(first.readout)  # what a run returns may begin another one
    for before, a, b, c, d in zip(
        *map(jax.tree.leaves, (kept, mine, first.readout, second.readout)),
        jax.tree.leaves(third.readout),
        strict=True,
    ):
        np.testing.assert_array_equal(a, before)
        np.testing.assert_array_equal(b, c)
        assert (np.asarray(b) != d).any()


@pytest.mark.parametrize(("local_steps", "rehearsed"), [(2, 1), (65, 0)])
def test_a_long_round_is_not_rehearsed(local_steps, rehearsed, monkeypatch):
    compiled, rounds = Engine._compile, []

    def counting(self, fn, shared_in, shared_out, args, name, donate=()):
        program = compiled(self, fn, shared_in, shared_out, args, name, donate)
        if name != "round":
            return program
        return lambda *args: rounds.append(int(args[-1][0])) or program(*args)

    monkeypatch.setattr(Engine, "_compile", counting)
    parsgd.fit(
        tiny(), parsgd.local_sgd(optax.sgd(0.1)), worker_batch=4, rounds=2,
        local_steps=local_steps, evaluations=1,
    )  # fmt: skip
    assert rounds[0] == rehearsed and sum(rounds[1:]) == 2
