"""What is not finite in one worker's array: all see it, and nothing of it is kept."""

import jax
import numpy as np
import optax
import pytest
import quantizer_codes
import sparse_codes
from reducing import LANES3, gradients, trajectory
from tiny import tiny

import parsgd
from parsgd.compressors import (
    fp16,
    linear_8bit,
    one_bit,
    random_k,
    scaled_sign,
    threshold,
    top_k,
)
from parsgd.reducers import (
    compressed_all_reduce,
    ef21,
    error_feedback,
    skip_nonfinite,
)

LEAF = one_bit(levels="leaf")
NAN_SEEN = {
    "majority_vote": parsgd.reducers.majority_vote(),
    "threshold": error_feedback(threshold(tau=0.5, max_density=0.2)),
    "ef_momentum": optax.chain(
        parsgd.reducers.local_momentum(0.9, nesterov=True),
        error_feedback(scaled_sign()),
    ),
    "two_sided": error_feedback(LEAF, two_sided=True),
    "ef21": ef21(linear_8bit()),
    "random_k": error_feedback(random_k(density=0.2)),
}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", NAN_SEEN)
def test_all_workers_see_what_is_not_finite_and_go_on_after_it(name, value):
    g = gradients((8, 6), 3, 5)
    g[1, 2, 4, 3] = value  # one entry of one worker in one step
    outs, states = trajectory(NAN_SEEN[name], LANES3, {"w": g})
    finite = np.isfinite(outs["w"]).all((2, 3))
    assert finite.tolist() == [[True, True, False, True, True]] * 3
    for out in outs["w"]:
        np.testing.assert_array_equal(out, outs["w"][0])
    for leaf in jax.tree.leaves(states):
        assert np.isfinite(leaf).all()
        if leaf.dtype == np.float32:
            # A worker's own momentum stays where its own gradient is at fault.
            which = slice(1, 2) if name == "ef_momentum" else slice(None)
            np.testing.assert_array_equal(leaf[which, 2], leaf[which, 1])


EVERY = {**quantizer_codes.CODES}
EVERY |= {name: make(density=0.2) for name, make in sparse_codes.CODES.items()}
TWO_SIDED = [n for n, code in EVERY.items() if code.contracts and not code.sums]


@pytest.mark.parametrize(
    ("name", "two_sided"),
    [*((name, False) for name in EVERY), *((name, True) for name in TWO_SIDED)],
)
@pytest.mark.parametrize("shape", [(8, 6), (180, 230)])
def test_all_of_an_average_is_nan_where_one_entry_of_one_worker_is_not_finite(
    name, two_sided, shape
):
    """Large ones too: of some thousand entries XLA's maximum drops a NaN."""
    g = {"w": gradients(shape, 3, 4, 0), "clean": gradients(shape, 3, 4, 1)}
    g["w"][1, 0, 4, 3] = np.nan
    g["w"][2, 1, 7, 1] = -np.inf
    g["w"][0, 2] = np.nan
    reducer = compressed_all_reduce(EVERY[name], two_sided=two_sided)
    outs, _ = trajectory(reducer, LANES3, g)
    assert np.isnan(outs["w"][:, :3]).all()
    assert np.isfinite(outs["w"][:, 3]).all() and np.isfinite(outs["clean"]).all()


@pytest.mark.parametrize(
    "reducer",
    [
        error_feedback(LEAF),
        error_feedback(top_k(density=0.2), two_sided=True),
        compressed_all_reduce(fp16()),
    ],
)
def test_a_step_is_skipped_whose_average_has_no_number(reducer):
    g = gradients((8, 6), 3, 3)
    g[:, 1, 2] = 2.5e38  # finite, and their sum is not
    safe = skip_nonfinite(optax.chain(reducer, optax.sgd(0.1, 0.9)))
    outs, states = trajectory(safe, LANES3, {"w": g})
    assert np.isfinite(outs["w"]).all() and not np.any(outs["w"][:, 1])
    assert states.skipped[:, -1].tolist() == [1, 1, 1]
    assert states.overflowed[:, -1].tolist() == [1, 1, 1]
    assert not np.any(states.own)  # no gradient was at fault
    inner = jax.tree.leaves(states.inner)
    assert any(np.any(x) for x in inner)
    for leaf in inner:
        np.testing.assert_array_equal(leaf[:, 1], leaf[:, 0])


def test_steps_that_overflow_are_told():
    """Nobody's gradient is at fault, so no worker is named."""
    halves = compressed_all_reduce(fp16())
    huge = optax.chain(optax.scale(1e8), halves, optax.scale(1e-8))
    method = parsgd.data_parallel(optax.sgd(0.1), reducer=huge, skip_nonfinite=True)
    said = []

    class Listener(parsgd.Observer):
        def say(self, line):
            said.append(line)

    run = parsgd.fit(
        tiny(), method, workers=3, worker_batch=4, rounds=6, evaluations=2,
        observer=Listener(),
    )  # fmt: skip
    assert run.status == "completed"
    want = "3 steps skipped: the gradients were finite, and their average or the step"
    assert [line.startswith(want) for line in said] == [True, True], said


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("code", [LEAF, top_k(density=0.2)])
def test_a_step_whose_sum_overflows_is_as_if_it_had_not_been(code, two_sided):
    g = gradients((8, 6), 3, 3)
    g[:, 1, :, 4:] = 2.5e38  # two-sided: the columns of one owner
    reducer = error_feedback(code, two_sided=two_sided)
    outs, states = trajectory(reducer, LANES3, {"w": g})
    assert np.isnan(outs["w"]).all((0, 2, 3)).tolist() == [False, True, False]
    for leaf in jax.tree.leaves((states.error, states.exchange.owner_error)):
        np.testing.assert_array_equal(leaf[:, 1], leaf[:, 0])
