"""A collective in a branch that only some workers may take is refused."""

import jax
import jax.numpy as jnp
import optax
import pytest
from tiny import tiny

import parsgd
from parsgd import comm, traffic
from parsgd.errors import UserError

X = jnp.zeros(3)


def send(flag, x):
    return jax.lax.cond(flag, comm.mean, lambda x: x, x)


def in_a_loop(x):
    # What the loop carries is equal in its first turn only.
    def turn(carry, _):
        flag, x = carry
        x = send(flag, x)
        return (comm.rank() > 0, x), None

    return jax.lax.scan(turn, (jnp.bool_(True), x), length=2)[0][1]


def after_a_loop(x):
    def turn(pair):
        return pair[0] + 1, pair[1] + comm.rank()

    _, at = jax.lax.while_loop(lambda pair: pair[0] < 3, turn, (0, 0))
    return send(at > 1, x)


ALONE = {
    "by rank": lambda x, _: send(comm.rank() == 0, x),
    "by its own numbers": lambda _, own: send(own[0] > 0, own),
    "by a neighbour's": lambda x, own: send(comm.shift(own)[0] > 0, x),
    "in a call": lambda x, own: jax.jit(send)(own[0] > 0, x),
    "in a gradient": lambda x, own: jax.checkpoint(send)(own[0] > 0, x),
    "in a loop": lambda x, _: in_a_loop(x),
    "after a loop": lambda x, _: after_a_loop(x),
    "by another branch": lambda x, own: send(
        jax.lax.cond(own[0] > 0, lambda: 1, lambda: 0) > 0, x
    ),
}
TOGETHER = {
    "by what all have": lambda x, own: send(x[0] > 0, own),
    "by a sum": lambda _, own: send(comm.total(own)[0] > 0, own),
    "by a maximum": lambda _, own: send(comm.maximum(own[0] > 0) > 0, own),
    "by what was gathered": lambda _, own: send(comm.gather(own)[0, 0] > 0, own),
    "by what is agreed": lambda _, own: send(comm.agreed(comm.shift(own))[0] > 0, own),
    "without a collective": lambda x, own: (
        jax.lax.cond(own[0] > 0, jnp.sin, jnp.cos, own) + comm.mean(x)
    ),
}


@pytest.mark.parametrize("name", ALONE)
def test_workers_that_decide_alone_whether_to_send_are_refused(name):
    with pytest.raises(UserError, match=r"a lax\.cond decides whether .* \(psum\)"):
        traffic.trace(ALONE[name], 2, X, X, shared=(True, False))


@pytest.mark.parametrize("name", TOGETHER)
def test_workers_that_decide_alike_may_send(name):
    traffic.trace(TOGETHER[name], 2, X, X, shared=(True, False))


def lazy(threshold, agree):
    """Sends a gradient only where it is large; else the last average holds."""

    def update(grads, last, params=None):
        flag = optax.tree.norm(grads) > threshold
        flag = comm.maximum(flag) > 0 if agree else flag
        mean = jax.lax.cond(flag, lambda: comm.mean(grads), lambda: last)
        return mean, mean

    return optax.GradientTransformation(optax.tree.zeros_like, update)


@pytest.mark.parametrize("placement", ["vmap", "shard_map"])
def test_a_run_says_so_before_it_starts(placement):
    def fit(agree, workers=2):
        method = parsgd.data_parallel(optax.sgd(0.1), reducer=lazy(0.5, agree))
        size = {"worker_batch": 4, "rounds": 2}
        return parsgd.fit(tiny(), method, workers=workers, placement=placement, **size)

    with pytest.raises(UserError, match=r"comm\.maximum\(flag\) > 0"):
        fit(agree=False)
    assert fit(agree=True).status == "completed"
    assert fit(agree=False, workers=1).status == "completed"
