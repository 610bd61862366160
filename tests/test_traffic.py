"""Bytes read from the program equal closed formulas and the compiled collectives."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_placements import engine
from tiny import tiny
from zoo import ZOO, shapes_of

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
    sent = run.traffic(len(run.worker.phases) - 1, row.local_steps).bytes
    assert sent == pytest.approx(row.sent(shapes_of(run.worker.spec.params), workers))


SENT = {
    "all-reduce": lambda n, w: 2 * (w - 1) / w * n,
    "all-gather": lambda n, w: (w - 1) * n,
    "collective-permute": lambda n, w: n,
    "all-to-all": lambda n, w: (w - 1) / w * n,
}
BYTES = {"f32": 4, "u8": 1, "s8": 1, "s32": 4, "u32": 4, "bf16": 2, "pred": 1}
COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(SENT)})\(")
SHAPE = re.compile(rf"({'|'.join(BYTES)})\[([\d,]*)\]")


def compiled_bytes(text, workers):
    """Bytes that a worker sends, from the collectives of a compiled program."""
    total = 0.0
    for line in text.splitlines():
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
            total += SENT[found[2]](size, workers)
    return total


# What stands in no zoo row: another collective, another type.
OTHERS = {
    "two-sided": (
        lambda opt: parsgd.compressed_sgd(
            opt,
            reducer=parsgd.error_feedback(
                compressors.one_bit(levels="leaf"), two_sided=True
            ),
        ),
        1,
    ),
    "8-bit block momentum": (
        lambda opt: parsgd.block_momentum(
            opt, reducer=parsgd.error_feedback(compressors.linear_8bit())
        ),
        3,
    ),
}


# The ring's messages are in a loop, whose length the program's text does not show.
@pytest.mark.parametrize("name", sorted({*ZOO, *OTHERS} - {"sync_sgd ring"}))
def test_bytes_equal_the_compiled_program(name):
    workers = 4
    if name in ZOO:
        algorithm, h = name, ZOO[name].local_steps
    else:
        make, h = OTHERS[name]
        algorithm = make(optax.sgd(0.1, 0.9))
    run, _ = engine(algorithm, workers, "shard_map")
    phase = len(run.worker.phases) - 1
    state = run.init(jax.random.key(0))
    index = np.zeros((workers, h, 4), np.int32)

    def one(state, x, y, index):
        return run.worker.round(phase, state, x, y, index, None)[0]

    fn = spmd.spmd(one, run.placement, (run.shared, True, True, False), run.shared)
    text = jax.jit(fn).lower(state, *run._data, index).compile().as_text()
    step, loop = compiled_bytes(text, workers), run.traffic(phase, h).bytes
    # Every collective of these algorithms stands outside the scan over local steps or
    # in a scan of length 1.
    assert step == pytest.approx(loop)


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
