"""DGC and DeMo, which keep momentum on the worker's side."""

import functools

import numpy as np
import optax
import pytest
import reducer_oracles as oracles
from reducing import LANES3, LANES4, PLACES, compare, gradients, trajectory

from parsgd.compressors.select import sampled_indices
from parsgd.errors import UserError
from parsgd.reducers import all_reduce, demo, dgc
from parsgd.strategies import dgc_sgd


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "options",
    [
        {"density": 0.1, "momentum": 0.9},
        {"density": 0.05, "momentum": 0.9, "masking": False},
        {"density": 0.1, "momentum": 0.7, "nesterov": True},
        {"density": 0.1, "momentum": 0.9, "clip": 4.0},
    ],
)
def test_dgc_follows_its_oracle(options, place):
    ours = dict(options)
    renamed = {"masking": "momentum_masking", "clip": "clip_norm"}
    for old, new in renamed.items():
        if old in ours:
            ours[new] = ours.pop(old)
    compare(
        dgc(**ours), place, lambda g: oracles.dgc(g, **options),
        lambda s: s.accumulated["['w']"], steps=12,
    )  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("shape", "side", "sign"),
    [((12, 8), (6, 8), True), ((12, 8), (6, 8), False), ((3, 4, 14), (6, 7), False)],
)
def test_demo_follows_its_oracle(shape, side, sign, place):
    compare(
        demo(decay=0.9, chunk=8, k=5, sign=sign, learning_rate=0.3), place,
        lambda g: oracles.demo(g, lr=0.3, decay=0.9, side=side, k=5, sign=sign),
        lambda s: s.momentum["['w']"], shape, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("workers", [1, 4])
def test_dgc_at_density_1_is_sgd(workers):
    place = ("vmap", 1, workers)
    g = gradients((5, 4), workers, 8)
    plain, _ = trajectory(all_reduce(), place, {"w": g})
    outs, _ = trajectory(dgc(density=1.0), place, {"w": g})
    np.testing.assert_array_equal(outs["w"], plain["w"])
    heavy = optax.chain(all_reduce(), optax.trace(0.9))
    plain, _ = trajectory(heavy, place, {"w": g})
    outs, _ = trajectory(dgc(density=1.0, momentum_masking=False), place, {"w": g})
    if workers == 1:
        np.testing.assert_array_equal(outs["w"], plain["w"])
    np.testing.assert_allclose(outs["w"], plain["w"], atol=1e-5)
    nesterov = optax.chain(all_reduce(), optax.trace(0.9, nesterov=True))
    plain, _ = trajectory(nesterov, place, {"w": g})
    options = {"density": 1.0, "momentum_masking": False, "nesterov": True}
    outs, _ = trajectory(dgc(**options), place, {"w": g})
    np.testing.assert_allclose(outs["w"], plain["w"], atol=1e-5)


def test_dgc_of_a_sample_sends_as_many_and_keeps_the_rest():
    # All that is large is in the sample.
    g = gradients((300, 400), 1, 2)
    unseen = np.isin(np.arange(120_000), sampled_indices(120_000), invert=True)
    g.reshape(1, 2, -1)[:, :, unseen] *= 0.1
    options, sent = {"density": 0.01, "momentum": 0.0}, {}
    for select in ("exact", "sampled"):
        reducer = dgc(**options, select=select)
        outs, states = trajectory(reducer, ("vmap", 1, 1), {"w": g})
        sent[select], left = outs["w"][0], states.accumulated["['w']"][0]
        assert [np.count_nonzero(x) for x in sent[select]] == [1200, 1200]
        np.testing.assert_array_equal(
            sent[select] + left, g[0] + [left[0] * 0, left[0]]
        )
        assert not (left[sent[select] != 0]).any()
    assert (sent["exact"] != sent["sampled"]).any()
    ((_, strategy, _),) = dgc_sgd(optax.sgd(1.0), **options, select="sampled")
    x = {"w": np.zeros((300, 400), np.float32)}
    x, _ = strategy.local({"w": g[0, 0]}, strategy.init(x), x)
    np.testing.assert_array_equal(-x["w"], sent["sampled"][0])
    for make in (dgc, functools.partial(dgc_sgd, optax.sgd(1.0))):
        with pytest.raises(ValueError, match=r"select='some'.*exact, sampled"):
            make(select="some")


def test_dgc_gives_averaged_leaves_momentum():
    g = gradients((7,), 4)
    outs, _ = trajectory(dgc(momentum=0.8), LANES4, {"b": g})
    heavy = optax.chain(all_reduce(), optax.trace(0.8))
    plain, _ = trajectory(heavy, LANES4, {"b": g})
    np.testing.assert_allclose(outs["b"], plain["b"], rtol=1e-6)


def test_demo_that_sends_all_without_decay_is_sgd():
    g = gradients((6, 4), 4)
    plain, _ = trajectory(all_reduce(), LANES4, {"w": g})
    whole, _ = trajectory(demo(k=100, sign=False), LANES4, {"w": g})
    np.testing.assert_array_equal(whole["w"], plain["w"])


def test_demo_follows_a_schedule():
    rate = optax.linear_schedule(1.0, 0.0, 3)
    g = np.ones((1, 4, 5), np.float32)
    one = demo(learning_rate=rate, sign=False)
    outs, _ = trajectory(one, ("vmap", 1, 1), {"b": g})
    np.testing.assert_allclose(outs["b"][0, :, 0], [1, 2 / 3, 1 / 3, 0], atol=1e-6)


def test_demo_applies_no_sign_of_what_is_not_finite():
    g = gradients((7,), 3, 2)
    g[1, 0, 4] = np.inf  # an entry of a leaf that is sent as it is
    outs, states = trajectory(demo(), LANES3, {"b": g})
    assert np.isnan(outs["b"][:, 0, 4]).all()
    assert np.isfinite(outs["b"][:, 1]).all()
    assert not states.momentum["['b']"].any()


def test_a_warm_up_of_dgc_without_densities_is_refused():
    with pytest.raises(UserError, match="warmup_steps=80 with no warmup_densities"):
        dgc_sgd(optax.sgd(0.1), warmup_steps=80, warmup_densities=())
