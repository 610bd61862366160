"""Every algorithm reaches the same state in every placement; sharing is found."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import tiny
from zoo import MORE_ROWS, ZOO

import parsgd
from parsgd import comm, cores
from parsgd.core import phases
from parsgd.data.order import Order
from parsgd.placement import spmd
from parsgd.placement.devices import place
from parsgd.training.engine import Engine
from parsgd.training.turns import better_in_turn, core_each

ROWS = ZOO | MORE_ROWS


def engine(name, workers, kind, devices=None, task=None, **options):
    order = Order(examples=96, workers=workers, worker_batch=4)
    algorithm = (
        name if not isinstance(name, str) else ROWS[name].make(optax.sgd(0.1, 0.9))
    )
    return Engine(
        task or tiny(), phases(algorithm), order=order, kind=kind, devices=devices,
        **options,
    ), order  # fmt: skip


def state_after(name, workers, kind, devices=None, rounds=3, made=None):
    """The whole state, every worker's, after some rounds of each phase."""
    run, order = made or engine(name, workers, kind, devices)
    state = run.init(jax.random.key(1))
    step, h = 0, ROWS[name].local_steps
    for phase in range(len(run.worker.phases)):
        index, weight = order.indices(step, rounds * h)
        index = index.reshape(rounds, h, workers, 4).transpose(2, 0, 1, 3)
        state, losses, spread, _ = run.run(state, phase, index, weight, rounds)
        step += rounds * h
    state = state._replace(key=jax.random.key_data(state.key))
    whole = jax.tree.map(
        lambda same, x: (
            np.broadcast_to(x, (workers, *x.shape)) if same else np.asarray(x)
        ),
        run.shared,
        state,
    )
    return whole, losses, spread


@functools.cache
def by_lanes(name, workers):
    """`state_after` in the placement that others are compared with."""
    return state_after(name, workers, "vmap")


@pytest.mark.parametrize("name", ROWS)
def test_placements_agree_on_the_whole_state(name):
    others = {3: [("shard_map", None)], 4: [("shard_map", 2), ("pmap", 2)]}
    if name in MORE_ROWS:
        others = {4: [("shard_map", 2)]}
    for workers, places in others.items():
        reference, losses, spread = by_lanes(name, workers)
        for kind, devices in places:
            state, values, apart = state_after(name, workers, kind, devices)
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6),
                reference,
                state,
            )
            np.testing.assert_allclose(losses, values, rtol=1e-5)
            np.testing.assert_allclose(spread, apart, rtol=1e-4, atol=1e-7)


# With a large eps: a gradient that is nothing but rounding would become a whole step.
OPTIMIZERS = {
    "adamw": lambda: optax.adamw(0.01, eps=1e-3),
    "lamb": lambda: optax.lamb(0.01, eps=1e-3),
    "rmsprop": lambda: optax.rmsprop(0.01, eps=1e-3, momentum=0.9),
    "lars": lambda: optax.lars(0.1),
    "nesterov": lambda: optax.sgd(optax.exponential_decay(0.1, 4, 0.5), 0.9, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(ZOO)), ids=[*ZOO])
def test_any_optimizer_trains_alike_in_other_placements(at):
    row, optimizer = [*ZOO.values()][at], [*OPTIMIZERS.values()][at % len(OPTIMIZERS)]
    ends = []
    for kind, devices in (("vmap", None), ("shard_map", 2)):
        run = parsgd.fit(
            tiny(), row.make(optimizer()), workers=4, worker_batch=4, epochs=1,
            local_steps=row.local_steps, placement=kind, devices=devices,
        )  # fmt: skip
        assert run.status == "completed"
        ends.append(run.readout)
    start = tiny().init(jax.random.key(0))[0]
    assert any(np.abs(ends[0][k] - start[k]).max() > 1e-3 for k in start)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), *ends
    )


def test_pmap_with_one_lane_agrees():
    reference, *_ = by_lanes("local_sgd", 4)
    state, *_ = state_after("local_sgd", 4, "pmap")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6),
        reference,
        state,
    )


@pytest.mark.parametrize("name", ZOO)
def test_lanes_in_turn_agree_with_lanes_together(name, monkeypatch):
    exchanges = ROWS[name].identical and not name.startswith("single")
    if not exchanges:  # before they take turns there too
        reference, losses, _ = by_lanes(name, 4)
    monkeypatch.setattr("parsgd.training.turns.better_in_turn", lambda *a, **k: True)
    for devices in (1, 2):
        run, order = engine(name, 4, "shard_map", devices)
        assert ("one after the other" in run.describe()) == (not exchanges)
        if exchanges:
            continue
        state, values, _ = state_after(name, 4, "shard_map", made=(run, order))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6),
            reference,
            state,
        )
        np.testing.assert_allclose(losses, values, rtol=1e-5)


def equations(jaxpr, name):
    """Those of a primitive, in loops and branches too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations(inner, name)


def test_rounds_hand_on_the_room_for_what_lanes_have_apart(monkeypatch):
    monkeypatch.setattr("parsgd.training.turns.better_in_turn", lambda *a, **k: True)
    traced, real = {}, spmd.spmd

    def noted(fn, *args):
        traced[getattr(fn, "func", fn).__name__] = jax.make_jaxpr(real(fn, *args))(
            *args[-1]
        )
        return real(fn, *args)

    monkeypatch.setattr(spmd, "spmd", noted)
    run, order = engine("diloco", 4, "vmap")
    state_after("diloco", 4, "vmap", made=(run, order))
    stacked = {
        out.aval.shape
        for scan in equations(traced["_rounds"].jaxpr, "scan")
        for out in scan.outvars[scan.params["num_carry"] :]
    }
    own = {(4, *x.shape) for x in jax.tree.leaves(run.worker.spec.params)}
    assert (4, 3) in stacked and not own & stacked  # losses; parameters have their room


def test_lanes_that_communicate_never_take_turns(monkeypatch):
    def local(grads, state, params):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, comm.shift(grads)), state

    monkeypatch.setattr("parsgd.training.turns.better_in_turn", lambda *a, **k: True)
    run, _ = engine(parsgd.Strategy(lambda params: (), local), 4, "vmap")
    assert "one after the other" not in run.describe()


def test_lanes_take_turns_where_a_device_has_one_core_or_they_are_large():
    def turns(kib, *, alone):
        where = place(4, kind="vmap")
        return better_in_turn(where, lane_bytes=kib << 10, core_each=alone)

    assert [turns(kib, alone=True) for kib in (70, 400)] == [False, True]
    assert [turns(kib, alone=False) for kib in (400, 10_000)] == [False, True]


def test_a_device_has_one_core_where_there_are_no_more_cores(monkeypatch):
    monkeypatch.setattr(cores, "usable", lambda: [0, 1])
    four = [place(4, kind="shard_map", devices=n) for n in (1, 2, 4)]
    assert [core_each(where) for where in four] == [False, True, True]
    monkeypatch.setattr(cores, "usable", lambda: [0, 1, 2, 3])
    three = [place(6, kind="shard_map", devices=n) for n in (2, 3)]
    assert [core_each(where) for where in three] == [False, True]
    monkeypatch.setattr(cores, "usable", lambda: [1])
    assert core_each(four[0])


@pytest.mark.parametrize("name", ["local_sgd", "one_bit_sgd"])
def test_debug_agrees(name):
    reference, *_ = state_after(name, 3, "vmap", rounds=1)
    state, *_ = state_after(name, 3, "debug", rounds=1)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        reference,
        state,
    )


@pytest.mark.parametrize("name", ZOO)
def test_what_workers_share_is_stored_once(name):
    run, _ = engine(name, 4, "vmap")
    row = ROWS[name]
    assert all(jax.tree.leaves(run.shared.params)) == row.shared
    assert run.worker.identical == row.identical
    assert run.shared.key and run.shared.step
    state = run.init(jax.random.key(0))
    copies = 1 if row.shared else 4
    assert state.params["w1"].size == copies * 9 * 16
    if "one_bit" in name:  # the residual is each worker's own, momentum is not
        (feedback, sgd) = run.shared.strategy
        assert not any(feedback.error.values()) and all(jax.tree.leaves(sgd))


def test_a_state_that_asks_for_the_rank_is_each_workers_own():
    ranked = parsgd.sync_sgd(optax.sgd(0.1))._replace(init=lambda p: comm.rank())
    ranked = ranked._replace(local=lambda g, s, p: (p, s))
    run, _ = engine(ranked, 3, "vmap")
    assert run.shared.strategy is False
    assert run.init(jax.random.key(0)).strategy.tolist() == [0, 1, 2]


def test_readout_that_differs_is_refused():
    own = parsgd.single(optax.sgd(0.1))._replace(readout=lambda p, s: p)
    run, _ = engine(own, 3, "vmap")
    with pytest.raises(ValueError, match="readout differs between workers"):
        run.readout(run.init(jax.random.key(0)), 0)


def test_debug_names_stage_and_shapes():
    def broken(grads, state, params):
        raise FloatingPointError("wrong")

    run, _ = engine(parsgd.single(optax.sgd(0.1)), 1, "debug")
    state = run.init(jax.random.key(0))
    strategy = run.worker.phases[0].strategy._replace(local=broken)
    run.worker.phases = (run.worker.phases[0]._replace(strategy=strategy),)
    with pytest.raises(FloatingPointError, match="wrong") as caught:
        run.run(state, 0, np.zeros((1, 1, 1, 4), np.int32), None, 1)
    note = next(n for n in caught.value.__notes__ if "stage" in n)
    assert "'round'" in note and "float32[9, 16]" in note


def drifted(state):
    """The same state, but for a number that is 1e-3 larger on the third device."""
    w = state.params["w2"]
    shards = w.addressable_shards
    pieces = [np.array(s.data) for s in shards]
    pieces[2][1, 1] += 1e-3
    placed = [jax.device_put(p, s.device) for p, s in zip(pieces, shards, strict=True)]
    w = jax.make_array_from_single_device_arrays(w.shape, w.sharding, placed)
    return state._replace(params={**state.params, "w2": w})


def test_A10_replicas_that_drift_are_named():
    run, order = engine("sync_sgd", 4, "shard_map")
    state = run.init(jax.random.key(0))
    index, weight = order.indices(0, 100)
    index = index.reshape(100, 1, 4, 4).transpose(2, 0, 1, 3)
    state, *_ = run.run(state, 0, index, weight, 100)
    run.check_replicas(state)
    with pytest.raises(RuntimeError, match=r"worker 2 .*\.params\['w2'\]"):
        run.check_replicas(drifted(state))


def test_A10_a_run_stops_at_the_worker_that_drifts(monkeypatch):
    run = Engine.run

    def drifting(self, state, *args, **options):
        outcome = run(self, state, *args, **options)
        if outcome.state.step == 4:
            return outcome._replace(state=drifted(outcome.state))
        return outcome

    monkeypatch.setattr(Engine, "run", drifting)
    sizes = {"workers": 4, "worker_batch": 4, "rounds": 6, "evaluations": 6}
    options = sizes | {"placement": "shard_map", "devices": 4}
    for make in (parsgd.sync_sgd, parsgd.local_sgd):
        method = make(optax.sgd(0.1))
        with pytest.raises(RuntimeError, match=r"worker 2 .*\.params\['w2'\]"):
            parsgd.fit(tiny(), method, check_replicas=True, **options)
        assert parsgd.fit(tiny(), method, **options).status == "completed"


def test_one_program_serves_any_number_of_rounds():
    run, order = engine("local_sgd", 4, "vmap")
    state = run.init(jax.random.key(0))
    before = len(run._programs)
    for count in (1, 2, 2, 1):
        index, weight = order.indices(0, 6)
        index = index.reshape(2, 3, 4, 4).transpose(2, 0, 1, 3)
        state, losses, *_ = run.run(state, 0, index, weight, count)
        assert losses.shape == (4, count, 3)
    assert len(run._programs) == before + 1


@pytest.mark.parametrize("kind", ["vmap", "shard_map"])
@pytest.mark.parametrize("name", ["sync_sgd", "diloco", "block_momentum nesterov"])
def test_I6_I7_state_is_donated_without_aliases(name, kind):
    run, order = engine(name, 4, kind)
    state = run.init(jax.random.key(0))
    h = ROWS[name].local_steps
    for _ in range(2):  # warnings are errors: an unusable donation would raise
        leaves = [
            x for x in jax.tree.leaves(state) if x.dtype != jax.random.key(0).dtype
        ]
        pointers = [
            s.data.unsafe_buffer_pointer() for x in leaves for s in x.addressable_shards
        ]
        assert len({*pointers}) == len(pointers)
        index, weight = order.indices(0, h)
        index = index.reshape(1, h, 4, 4).transpose(2, 0, 1, 3)
        old = state
        state, *_ = run.run(state, 0, index, weight, 1)
        assert old.params["w1"].is_deleted()


def test_calls_of_the_host_do_not_hide_what_differs_between_processes():
    def text(rate):
        def program(x):
            y = jax.pure_callback(np.cos, x, x)
            jax.debug.print("{}", y)
            return rate * y

        return jax.jit(program).lower(jnp.ones(3)).as_text()

    def plain(rate, number):
        made = text(rate)
        assert "index = 0" in made and "index = 1" in made
        return spmd.without_numbers(made.replace("index = 0", f"index = {number}"))

    assert plain(0.1, 0) == plain(0.1, 7) != plain(0.2, 0)


def with_an_empty_parameter():
    """An array without entries, as of a model with an optional part, that is read."""
    base = tiny()

    def init(key):
        params, model = base.init(key)
        return params | {"none": jnp.zeros((0, 4))}, model

    def loss(params, model, batch, key):
        value, model = base.loss(params, model, batch, key)
        return value * (1 + jnp.sum(params["none"])), model

    return base._replace(init=init, loss=loss)


@pytest.mark.parametrize("kind", ["vmap", "shard_map", "pmap"])
def test_an_array_without_entries_is_each_workers_own(kind):
    method = parsgd.local_sgd(optax.sgd(0.1, 0.9))
    size = {"workers": 4, "worker_batch": 4, "local_steps": 2}
    size |= {"rounds": 4, "evaluations": 4, "train_examples": 50}
    run = parsgd.fit(with_an_empty_parameter(), method, placement=kind, **size)
    assert run.status == "completed" and run.readout["none"].shape == (0, 4)
