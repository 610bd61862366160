"""Collectives agree under every placement, with what numpy computes."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import parsgd
from parsgd import comm
from parsgd.cluster import fused
from parsgd.placement.devices import Placement
from parsgd.placement.spmd import spmd

# W = 2 would hide a wrong direction or a wrong rank order.
PLACES = [
    ("vmap", 1, 3),
    ("vmap", 1, 4),
    ("shard_map", 3, 1),
    ("shard_map", 4, 1),
    ("shard_map", 2, 3),
    ("shard_map", 3, 2),
    ("pmap", 4, 1),
    ("pmap", 2, 3),
    ("debug", 1, 4),
]


def over(fn, place, *args):
    """Run one worker's ``fn``; arguments and results have a leading worker axis."""
    kind, count, lanes = place
    where = Placement(kind, tuple(jax.devices()[:count]), lanes)
    run = spmd(fn, where, (False,) * len(args), False, args)
    run = jax.jit(run) if kind in ("vmap", "shard_map") else run
    return jax.tree.map(np.asarray, run(*args))


@pytest.fixture(params=PLACES, ids=lambda p: f"{p[0]}-{p[1]}x{p[2]}")
def place(request):
    return request.param


def values(place, dtype=np.float32):
    workers = place[1] * place[2]
    x = np.random.default_rng(0).normal(size=(workers, 5, 3)) * 8
    return x.astype(dtype)


def test_rank_and_world(place):
    x = values(place)
    rank = over(lambda x: comm.rank() + 0 * x[0, 0].astype(jnp.int32), place, x)
    assert rank.tolist() == list(range(len(x)))
    assert over(lambda x: comm.world() + 0 * x[0, 0], place, x).tolist() == [
        len(x)
    ] * len(x)


def test_mean_total_gather(place):
    x = values(place)
    mean, total, gathered = over(
        lambda x: (comm.mean(x), comm.total(x), comm.gather(x)), place, x
    )
    for w in range(len(x)):
        np.testing.assert_allclose(mean[w], x.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(total[w], x.sum(0), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(gathered[w], x)
        np.testing.assert_array_equal(mean[w], mean[0])


def test_one_message_for_each_type_gives_the_same(place, monkeypatch):
    x = values(place)
    tree = {
        "w": x,
        "b": x[:, 0],
        "scalar": x[:, 0, 0],
        "half": values(place).astype(jnp.bfloat16),
        "n": values(place, np.int32),
        "n2": values(place, np.int32)[:, 0],
    }

    def send(tree):
        largest = comm.maximum(tree)
        return comm.mean(tree), comm.total(tree), comm.gather(tree), largest

    small = over(send, place, tree)  # as between the devices of a process
    monkeypatch.setattr(fused, "SMALL", 4 * tree["w"].size / len(tree["w"]) - 1)
    smaller = over(send, place, tree)
    monkeypatch.setattr(fused, "SMALL", -1)
    apart = over(send, place, tree)
    monkeypatch.setattr(fused, "_sent_together", lambda: math.inf)
    at_once = over(send, place, tree)
    for together in (small, smaller, at_once):
        jax.tree.map(np.testing.assert_array_equal, together, apart)
    if place[0] == "shard_map" and place[2] == 1:
        one = jax.tree.map(lambda x: x[0], tree)
        for call in (comm.gather, comm.maximum):
            called = parsgd.traffic.trace(call, place[1], one)
            assert sum(m.count for m in called.messages) == 3


def test_mean_leaves_counts_alone_and_keeps_types(place):
    x = {"count": values(place, np.int32), "half": values(place).astype(jnp.bfloat16)}
    mean, total = over(lambda x: (comm.mean(x), comm.total(x)), place, x)
    np.testing.assert_array_equal(mean["count"], x["count"])
    assert mean["half"].dtype == jnp.bfloat16
    want = x["half"].astype(np.float32).mean(0)
    np.testing.assert_allclose(
        mean["half"][0].astype(np.float32), want, rtol=0.02, atol=0.05
    )
    np.testing.assert_array_equal(total["count"][0], x["count"].sum(0))


def test_permute_and_shift(place):
    x = values(place)
    workers = len(x)
    pairs = [(0, workers - 1), (workers - 1, 1), (1, 0)]
    moved, ring, back = over(
        lambda x: (comm.permute(x, pairs), comm.shift(x), comm.shift(x, -1)), place, x
    )
    np.testing.assert_array_equal(ring, np.roll(x, 1, axis=0))
    np.testing.assert_array_equal(back, np.roll(x, -1, axis=0))
    want = np.zeros_like(x)
    for source, target in pairs:
        want[target] = x[source]
    np.testing.assert_array_equal(moved, want)


def test_alone_nothing_is_sent():
    x = jnp.arange(3.0)
    assert comm.world() == 1 and int(comm.rank()) == 0
    np.testing.assert_array_equal(comm.mean(x), x)
    np.testing.assert_array_equal(comm.gather(x), x[None])
    np.testing.assert_array_equal(comm.shift(x), x)
    assert parsgd.traffic.trace(comm.mean, 1, x).bytes == 0


@pytest.mark.parametrize(
    ("pairs", "message"),
    [([(0, 1), (0, 2)], "twice"), ([(0, 1), (2, 1)], "twice"), ([(0, 9)], r"0\.\.3")],
)
def test_permute_refuses(pairs, message):
    with pytest.raises(ValueError, match=message):
        over(lambda x: comm.permute(x, pairs), ("vmap", 1, 4), np.zeros((4, 1)))


@pytest.mark.parametrize("lanes", [2, 3, 7, 13, 15, 33])
def test_mean_of_equal_halves_is_themselves(lanes):
    """1/L has no exact bfloat16: the sum is scaled in float32."""
    x = np.linspace(1, 1.99, 128).astype(jnp.bfloat16)
    got = over(comm.mean, ("vmap", 1, lanes), np.tile(x, (lanes, 1)))
    np.testing.assert_array_equal(got, np.tile(x, (lanes, 1)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
@pytest.mark.parametrize(
    "place", [("shard_map", 2, 3), ("shard_map", 3, 2), ("pmap", 2, 3)], ids=str
)
def test_means_of_halves_differ_between_placements_by_few_roundings(place, dtype):
    x = np.random.default_rng(0).normal(size=(6, 1000)).astype(dtype)
    together = over(comm.mean, ("vmap", 1, 6), x).astype(np.float32)
    apart = over(comm.mean, place, x)
    assert apart.dtype == dtype
    unit = float(jnp.finfo(dtype).eps) * np.abs(x.astype(np.float32)).max(0)
    assert (np.abs(apart.astype(np.float32) - together) <= place[1] * unit).all()
    exact = x.astype(np.float32).mean(0)
    assert (np.abs(together - exact) <= unit).all()


def test_the_mean_of_large_float16_numbers_does_not_overflow(place):
    x = np.full((place[1] * place[2], 7), 60000, np.float16)
    x[0, 3] = np.inf
    mean = over(comm.mean, place, x)
    assert mean.dtype == np.float16
    np.testing.assert_array_equal(np.isinf(mean), x[:1] * np.ones_like(x) > 60000)
    np.testing.assert_allclose(np.delete(mean, 3, 1), 60000, rtol=2e-3)


def test_maximum_and_all_to_all(place):
    x = values(place)
    workers = len(x)
    parts = np.arange(workers * workers).reshape(workers, workers)
    top, turned = over(
        lambda x, p: (comm.maximum(x), comm.all_to_all(p)), place, x, parts
    )
    np.testing.assert_array_equal(top, np.broadcast_to(x.max(0), x.shape))
    np.testing.assert_array_equal(turned, parts.T)


def test_a_maximum_of_counts_is_exact(place):
    """Also above 2^24, where float32 has no odd numbers."""
    x = values(place)[:, :3]
    counts = 2**24 + 1 + np.arange(len(x), dtype=np.int32)
    top = over(comm.maximum, place, {"x": x, "count": counts})
    assert top["count"].dtype == np.int32 and (top["count"] == counts.max()).all()


def test_all_to_all_needs_a_part_for_each_worker():
    with pytest.raises(ValueError, match="2 parts for 3 workers"):
        over(comm.all_to_all, ("vmap", 1, 3), np.zeros((3, 2)))


@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_all_reduce_algorithms_equal_the_native_one(place, algorithm, dtype):
    x = values(place, dtype)
    tree = {"x": x, "odd": x[:, :1, 0], "count": np.arange(len(x)), "none": x[:, :0]}
    groups = [1, 2, len(x)] if algorithm == "hierarchical" else [None]
    for group in groups:
        if group and len(x) % group:
            continue
        reducer = parsgd.all_reduce(algorithm=algorithm, group=group)
        out = over(lambda t, r=reducer: r.update(t, r.init(t))[0], place, tree)
        np.testing.assert_array_equal(out["count"], tree["count"])
        assert out["none"].shape == tree["none"].shape
        for name in ("x", "odd"):
            mean = tree[name].astype(np.float64).mean(0)
            assert out[name].dtype == dtype
            tolerance = 2e-6 if dtype == np.float32 else 4e-2
            np.testing.assert_allclose(
                out[name][0].astype(np.float64), mean, rtol=tolerance, atol=tolerance
            )
            assert all((o == out[name][0]).all() for o in out[name])


def test_groups_must_divide_the_workers():
    reducer = parsgd.all_reduce(algorithm="hierarchical", group=2)
    with pytest.raises(ValueError, match=r"group=2 does not divide 3 .* \[1, 3\]"):
        over(lambda x: reducer.update(x, ())[0], ("vmap", 1, 3), np.zeros((3, 2)))


@pytest.mark.parametrize("options", [{"algorithm": "rong"}, {"group": 2}])
def test_all_reduce_refuses(options):
    with pytest.raises(ValueError, match="algorithm="):
        parsgd.all_reduce(**options)


def test_small_arrays_of_one_process_are_one_message():
    """So they travel; what is said of an algorithm tells its arrays apart."""
    shapes = {"a": (7,), "b": (3, 5), "large": (512, 512)}
    one = {name: jnp.ones(shape) for name, shape in shapes.items()}
    tree = jax.tree.map(lambda x: jnp.stack([x] * 4), one)
    where = Placement("shard_map", tuple(jax.devices()), 1)
    program = jax.make_jaxpr(spmd(comm.mean, where, (False,), False))(tree)
    assert len(re.findall(r"\bpsum\w*\[", str(program))) == 2
    assert len(parsgd.traffic.trace(comm.mean, 4, one).messages) == 3
