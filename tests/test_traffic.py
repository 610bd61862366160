"""Bytes read from the program equal closed formulas and the compiled collectives."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import zoo_compressed
from test_placements import engine
from tiny import tiny
from zoo import MORE_ROWS, ZOO, shapes_of

import parsgd
from parsgd import comm, compressors, traffic
from parsgd.core import phases
from parsgd.data.order import Order
from parsgd.placement import spmd
from parsgd.training.engine import Engine


@pytest.mark.parametrize("workers", [1, 3, 4, 64])
@pytest.mark.parametrize("name", ZOO)
def test_K4_bytes_equal_the_formula(name, workers):
    row = ZOO[name]
    order = Order(examples=960, workers=workers, worker_batch=4)
    run = Engine(tiny(960), phases(row.make(optax.sgd(0.1, 0.9))), order=order)
    sent = run.worker.traffic(len(run.worker.phases) - 1, row.local_steps).bytes
    assert sent == pytest.approx(row.sent(shapes_of(run.worker.spec.params), workers))


SENT = {
    "all-reduce": lambda n, w: 2 * (w - 1) / w * n,
    "all-gather": lambda n, w: (w - 1) * n,
    "collective-permute": lambda n, w: n,
    "all-to-all": lambda n, w: (w - 1) / w * n,
}
BYTES = {"f32": 4, "f16": 2, "u8": 1, "s8": 1, "s32": 4, "u32": 4, "bf16": 2, "pred": 1}
COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(SENT)})\(")
SHAPE = re.compile(rf"\b({'|'.join(BYTES)})\[([\d,]*)\]")
COMPUTATION = re.compile(r"^(ENTRY )?%([\w.-]+) .*\{$")
CALLED = re.compile(r"(\w+)=\{?((?:%[\w.-]+(?:, )?)+)")
TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')


def runs(text):
    """How often a compiled program runs each of its computations."""
    where, times, calls = "", {}, {}
    for line in text.splitlines():
        if found := COMPUTATION.match(line):
            where = found[2]
            times[where] = 1 if found[1] else 0
            continue
        for how, names in CALLED.findall(line):
            if how in ("body", "to_apply", "calls", "branch_computations"):
                trips = int(TRIPS.search(line)[1]) if how == "body" else 1
                for name in re.findall(r"%([\w.-]+)", names):
                    calls.setdefault(name, []).append((where, trips))

    def count(name):
        return times[name] + sum(n * count(by) for by, n in calls.get(name, ()))

    return {name: count(name) for name in times}


def compiled_bytes(text, workers):
    """Bytes that a worker sends, from the collectives of a compiled program."""
    total, often, now = 0.0, runs(text), 0
    for line in text.splitlines():
        if computation := COMPUTATION.match(line):
            now = often[computation[2]]
        found = COLLECTIVE.search(line)
        if not found:
            continue
        for dtype, dims in SHAPE.findall(found[1]):
            size = math.prod(int(d) for d in dims.split(",") if d) * BYTES[dtype]
            if found[2] == "all-gather":  # the result is W times what one contributes
                size /= workers
            if found[2] == "collective-permute":  # only some workers may send
                pairs = re.findall(r"\{(\d+),(\d+)\}", line.split("source_target")[1])
                size *= sum(a != b for a, b in pairs) / workers
            total += now * SENT[found[2]](size, workers)
    return total


CASTS = {
    name: zoo_compressed.by_reducer(
        lambda code=code: parsgd.compressed_all_reduce(code())
    )
    for name, code in {
        "fp16": compressors.fp16,
        "bf16": compressors.bf16,
        "fp8": compressors.fp8,
    }.items()
}


@pytest.mark.parametrize("name", sorted({*ZOO, *MORE_ROWS, *CASTS}))
def test_bytes_equal_the_compiled_program(name):
    workers = 4
    row = (ZOO | MORE_ROWS).get(name)
    make, h = (row.make, row.local_steps) if row else (CASTS[name], 1)
    run, _ = engine(make(optax.sgd(0.1, 0.9)), workers, "shard_map")
    phase = len(run.worker.phases) - 1
    h = run.worker.phases[phase].local_steps or h
    state = run.init(jax.random.key(0))
    index = np.zeros((workers, h, 4), np.int32)

    def one(state, x, y, index):
        return run.worker.round(phase, state, x, y, index, None)[0]

    fn = spmd.spmd(one, run.placement, (run.shared, True, True, False), run.shared)
    text = jax.jit(fn).lower(state, *run._data, index).compile().as_text()
    sent = run.worker.traffic(phase, h)
    wide = 0.0  # on CPU XLA adds bfloat16 up as float32, of twice the bytes
    for message in sent.messages:
        if (message.collective, message.dtype) == ("all-reduce", "bfloat16"):
            wide += message.bytes
    assert (wide > 0) == (name == "bf16")
    assert compiled_bytes(text, workers) == pytest.approx(sent.bytes + wide)


def test_loops_multiply_and_branches_take_the_larger():
    def fn(x):
        x = jax.lax.fori_loop(0, 5, lambda i, x: comm.mean(x), x)
        return jax.lax.cond(x[0] > 0, lambda x: comm.mean(comm.mean(x)), comm.mean, x)

    found = traffic.trace(fn, 2, jnp.zeros(10))
    assert [m.count for m in found.messages] == [5, 1, 1]
    assert found.bytes == 7 * 40 and found.calls == {"all-reduce": 7}


def test_each_collective():
    def fn(x):
        return comm.gather(x), comm.shift(x), comm.total(x.astype(jnp.uint8))

    found = traffic.trace(fn, 5, jnp.zeros(10)).by_collective()
    assert found == {"all-gather": 160.0, "permute": 40.0, "all-reduce": 16.0}


def test_unknown_trip_count_is_refused():
    def fn(x):
        return jax.lax.while_loop(lambda x: x[0] < 9, comm.mean, x)

    with pytest.raises(ValueError, match="unknown number of times"):
        traffic.trace(fn, 2, jnp.zeros(3))


def test_what_nothing_uses_is_not_counted():
    def ring(x):
        left, right = comm.shift(x, 1), comm.shift(x, -1)
        return left + (x if comm.world() == 2 else right)

    x = jnp.zeros(100)
    assert traffic.trace(ring, 2, x).bytes == 400
    assert traffic.trace(ring, 3, x).bytes == 800
    loop = lambda x: jax.lax.fori_loop(0, 3, lambda _, x: ring(x), x)
    assert traffic.trace(loop, 2, x).bytes == 1200

    @jax.jit
    def both(x):
        return x + 1, comm.mean(x)

    def records(x):
        step = lambda x, _: (x + 1, comm.mean(x))
        return jax.lax.scan(step, x, length=3)[0]

    assert traffic.trace(lambda x: both(x)[0], 2, x).bytes == 0
    assert traffic.trace(records, 2, x).bytes == 0

    def printing(x):
        jax.debug.print("{}", comm.mean(x)[0])
        return x

    assert traffic.trace(printing, 2, x).bytes == 400


def test_bytes_of_unequal_branches_are_the_most():
    def seldom(step, x):
        return jax.lax.cond(step & (step - 1) == 0, comm.mean, lambda x: x, x)

    sent = traffic.trace(seldom, 2, jnp.int32(0), jnp.zeros(100))
    assert sent.bytes == 400 and sent.at_most

    def either(step, x):
        return jax.lax.cond(step == 0, comm.mean, lambda x: comm.mean(-x), x)

    assert not traffic.trace(either, 2, jnp.int32(0), jnp.zeros(100)).at_most

    def sync(params, state):
        params = seldom(state["round"], params)
        return params, {**state, "round": state["round"] + 1}

    local = parsgd.local_sgd(optax.sgd(0.1))
    init = lambda params: {"round": jnp.int32(1), "local": local.init(params)}

    def step(grads, state, params):
        params, inner = local.local(grads, state["local"], params)
        return params, {**state, "local": inner}

    said = []

    class Lines(parsgd.Observer):
        def start(self, summary, lines):
            said.extend(lines)

    strategy = parsgd.Strategy(init, step, sync)
    sizes = {"workers": 2, "worker_batch": 4, "samples": 32, "local_steps": 2}
    parsgd.fit(tiny(), strategy, evaluations=1, observer=Lines(), **sizes)
    assert traffic.BRANCHES in said
