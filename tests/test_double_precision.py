"""With `jax_enable_x64`, all that is meant to be float32 stays so, and all runs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reducing import LANES3, gradients, trajectory
from tiny import tiny
from zoo import MORE_ROWS, ZOO

import parsgd
from parsgd.gradient import gradient
from parsgd.reducers import power_sgd

ROWS = ZOO | MORE_ROWS
# One of each kind of state and of payload.
NAMES = ("local_sgd average", "post_local_sgd", "block_momentum", "diloco")
NAMES += ("one_bit two-sided", "top_k ef21", "qsgd", "power_sgd", "dgc", "demo")
NAMES += ("adasum", "sign_sgd_majority", "one-bit adam", "zero-one adam")


@pytest.fixture(autouse=True)
def _doubles():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", NAMES)
def test_algorithms_run(name):
    run = parsgd.fit(
        tiny(),
        ROWS[name].make(optax.sgd(0.1, 0.9)),
        workers=4,
        worker_batch=4,
        samples=16 * 12,
        evaluations=1,
    )
    assert run.status == "completed"
    assert {x.dtype for x in jax.tree.leaves(run.readout)} == {np.dtype(np.float32)}


def test_power_sgd_sends_as_many_bytes_as_without():
    sent = []
    for doubles in (False, True):
        with jax.enable_x64(doubles):
            state = power_sgd(4).init({"w": jnp.zeros((16, 16), jnp.float32)})
            sent.append(sum(q.nbytes for q in state.q.values()))
    assert sent[0] == sent[1] > 0


def test_power_sgd_averages_what_has_a_lower_rank():
    g = {"w": gradients((3, 100), 3, 2).astype(np.float64)}
    outs, _ = trajectory(power_sgd(4), LANES3, g)
    mean = np.broadcast_to(g["w"].mean(0), g["w"].shape)
    np.testing.assert_allclose(outs["w"], mean, rtol=1e-12)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_task_whose_loss_is_of_double_precision_trains(parts):
    task = tiny()

    def loss(*args):
        value, model = task.loss(*args)
        return value.astype(jnp.float64), model

    sizes = {"workers": 2, "worker_batch": 4, "rounds": 3, "micro_batches": parts}
    sgd = parsgd.sync_sgd(optax.sgd(0.1))
    run = parsgd.fit(task._replace(loss=loss), sgd, **sizes)
    assert run.history[-1]["batch_loss"] < 5


@pytest.mark.parametrize("parts", [1, 2])
def test_losses_of_double_precision_stay_so(parts):
    def loss(params, model, batch, key):
        return jnp.mean(params * batch), model

    batch = np.array([1.0, 2.0, 3.0, 4.0 + 1e-12])
    value, _, grad = gradient(
        loss, jnp.float64(1.0), {}, batch, jax.random.key(0), parts
    )
    assert value.dtype == grad.dtype == np.float64
    np.testing.assert_allclose([value, grad], np.mean(batch), rtol=1e-15)
