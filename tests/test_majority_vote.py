"""The majority vote against counting in numpy: ties, zeros, numbers of workers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_comm import over
from test_strategies import problem, simulate

import parsgd
from parsgd.reducers import majority_vote


def gradients(workers):
    """Every combination of what workers may have at an entry, in two leaves."""
    values = np.array([-2.0, -0.0, 0.0, 0.5], np.float32)
    grid = np.meshgrid(*[values] * workers, indexing="ij")
    all_votes = np.stack(grid).reshape(workers, -1)
    return {"b": all_votes[:, :3], "w": all_votes[:, 2:].reshape(workers, -1, 2)}


def counted(votes, tie, zero="positive"):
    """A zero, also a negative one, is a vote as ``zero`` says."""
    ayes = ((votes > 0) | ((votes == 0) & (zero == "positive"))).sum(0)
    noes = len(votes) - ayes
    even = {"positive": 1.0, "zero": 0.0}[tie]
    return np.where(ayes > noes, 1.0, np.where(ayes < noes, -1.0, even))


def voted(place, tie, votes, zero="positive"):
    reducer = majority_vote(tie=tie, zero=zero)

    def worker(grads):
        return reducer.update(grads, reducer.init(grads))[0]

    return over(worker, place, votes)


@pytest.mark.parametrize("zero", ["positive", "negative"])
@pytest.mark.parametrize("tie", ["positive", "zero"])
@pytest.mark.parametrize(
    "place",
    [*(("vmap", 1, w) for w in (1, 2, 3, 4, 5)), ("shard_map", 2, 2)],
    ids=lambda p: f"{p[0]}-{p[1]}x{p[2]}",
)
def test_every_combination_of_votes_is_decided_as_counted(place, tie, zero):
    workers = place[1] * place[2]
    votes = gradients(workers)
    outs = voted(place, tie, votes, zero)
    for k, v in votes.items():
        for own in outs[k]:
            np.testing.assert_array_equal(own, counted(v, tie, zero))
    ties = sum((own == 0).any() for own in outs.values())
    assert (ties > 0) == (tie == "zero" and workers % 2 == 0)


def test_workers_without_a_gradient_have_no_vote():
    """As those that the last batch of an epoch left without samples."""
    votes = {"b": np.zeros((4, 2), np.float32), "w": np.zeros((4, 3, 2), np.float32)}
    votes["b"][2], votes["w"][2] = [-1.0, 2.0], -3.0
    outs = voted(("vmap", 1, 4), "positive", votes)
    np.testing.assert_array_equal(outs["b"], [[-1.0, 1.0]] * 4)
    np.testing.assert_array_equal(outs["w"], np.full((4, 3, 2), -1.0))


def test_strategies_hand_on_how_ties_are_decided():
    """Four workers, two for each direction: the step is +-0.5, or none."""
    votes = {"w": np.float32([[1, 1], [3, 0], [-1, -2], [-9, -1]])}
    for tie, want in (("positive", -0.5), ("zero", 0.0)):
        method = parsgd.sign_sgd_majority(optax.sgd(0.5), tie=tie)

        def step(g, method=method):
            x = jax.tree.map(jnp.zeros_like, g)
            return method.local(g, method.init(x), x)[0]

        (x,) = over(step, ("vmap", 1, 4), votes).values()
        np.testing.assert_array_equal(x, np.full((4, 2), want))


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_signum_votes_on_each_workers_momentum(workers):
    x, c = problem(workers, 10)
    method = parsgd.sign_sgd_majority(optax.sgd(0.05), momentum=0.8)
    ours = simulate(method, x, c, workers=workers, h=1, optimizer_steps=10)
    x = {k: np.float64(v) for k, v in x.items()}
    m = {k: np.zeros((workers, *v.shape)) for k, v in x.items()}
    for t, got in enumerate(ours):
        for k in x:
            m[k] = 0.8 * m[k] + np.tanh(x[k] - np.float64(c[k][t]))
            votes = np.where(m[k] >= 0, 1, -1).sum(0)
            x[k] = x[k] - 0.05 * np.where(votes >= 0, 1, -1)
            for w in range(workers):
                np.testing.assert_allclose(got[k][w], x[k], atol=1e-5)
