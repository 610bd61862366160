"""Lanes: what they share, and taking turns, as under vmap and without copies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from parsgd import comm
from parsgd.comm import LANES
from parsgd.lanes import in_turn, shared_outputs


def lanes(fn, own):
    return jax.vmap(fn, in_axes=own, axis_name=LANES)


def worker(steps, anchor, common, values):
    """Scans over ``values`` and hands the rest on."""

    def step(carry, value):
        total, anchor, common = carry
        return (total + value * jnp.sum(anchor) * common, anchor, common), value

    (total, anchor, common), seen = lax.scan(step, (steps, anchor, common), values)
    return {"total": total, "anchor": anchor, "common": common}, seen


ARGS = (
    np.arange(3, dtype=np.float32),
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.float32(2),
    np.arange(15, dtype=np.float32).reshape(3, 5),
)
OWN = (0, 0, None, 0)


def test_taking_turns_gives_what_vmap_gives():
    together = lanes(worker, OWN)(*ARGS)
    turns = lanes(in_turn(worker), OWN)(*ARGS)
    jax.tree.map(np.testing.assert_array_equal, together, turns)


def test_what_a_worker_hands_on_is_not_copied():
    turns = jax.make_jaxpr(lanes(in_turn(worker), OWN))(*ARGS)
    (loop,) = [e for e in turns.jaxpr.eqns if e.primitive.name == "scan"]
    shapes = sorted(out.aval.shape for out in loop.outvars)
    assert shapes == [(3,)]  # totals; neither the anchor nor the values


def test_outputs_that_all_lanes_share_stay_one():
    def fn(x, common):
        return x + 1, common + 1, common

    shared = jax.vmap(
        in_turn(fn), in_axes=(0, None), out_axes=(0, None, None), axis_name=LANES
    )
    more, next_, same = shared(np.arange(3.0, dtype=np.float32), np.float32(4))
    np.testing.assert_array_equal(more, [1, 2, 3])
    assert (float(next_), float(same)) == (5, 4)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y, s: (y, x),
        lambda x, y, s: (x, x, s, s),
        lambda x, y, s: {"constant": jnp.float32(1), "none": None, "y": y},
        lambda x, y, s: (x[:0], (s + 1,), x + y),
    ],
    ids=["swapped", "twice", "constant", "empty"],
)
def test_whatever_is_handed_on_comes_back_in_its_place(fn):
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    args = (x, 10 * x, np.float32(3))
    together = lanes(fn, (0, 0, None))(*args)
    turns = lanes(in_turn(fn), (0, 0, None))(*args)
    jax.tree.map(np.testing.assert_array_equal, together, turns)


def test_random_keys_take_turns():
    def fn(key, step):
        return key, jax.random.normal(jax.random.fold_in(key, step), (2,))

    args = (jax.random.split(jax.random.key(0), 3), np.arange(3))
    _, together = lanes(fn, (0, 0))(*args)
    keys, turns = lanes(in_turn(fn), (0, 0))(*args)
    np.testing.assert_array_equal(together, turns)
    assert (keys == args[0]).all()


def test_results_are_written_over_arguments_that_nothing_reads_any_more():
    def fn(room, x, common):
        del room
        return common + x, jnp.sum(x)

    args = (np.ones((3, 2), np.float32), 2 * np.ones((3, 2), np.float32), np.float32(1))
    turns = lanes(in_turn(fn), (0, 0, None))
    (loop,) = [
        e for e in jax.make_jaxpr(turns)(*args).jaxpr.eqns if e.primitive.name == "scan"
    ]
    made = loop.outvars[loop.params["num_carry"] :]
    assert [out.aval.shape for out in made] == [(3,)]  # the sums alone
    together = lanes(fn, (0, 0, None))(*args)
    jax.tree.map(np.testing.assert_array_equal, together, turns(*args))


def test_shared_outputs_sees_through_scan():
    def fn(p, x):
        def step(carry, x):
            p, e = carry
            return (p - comm.mean(p * x), e + p * x), None

        (p, e), _ = jax.lax.scan(step, (p, p * 0), x)
        return p, e

    args = (jax.ShapeDtypeStruct((3,), "f4"), jax.ShapeDtypeStruct((4, 2, 3), "f4"))
    assert shared_outputs(fn, 4, args, (True, False)) == (True, False)
