"""Choosing devices: what `auto` takes and says, and what is refused."""

import jax
import pytest
from test_placements import engine

import parsgd
from parsgd.placement.devices import place


def test_auto_says_why():
    assert place(8, identical=True).kind == "vmap"
    assert "one copy" in place(8, identical=True).describe()
    large = place(8, identical=True, spread=True)
    assert large.describe() == place(8).describe().replace(
        "workers differ between rounds", "long gradients"
    )
    spread = place(8)
    assert spread.workers == 8 and "core" in spread.reason
    uneven = place(7)
    one = "spread over 1 core, as 7 do not divide over"
    assert uneven.lanes == 7 and one in uneven.reason


def test_devices_by_index():
    chosen = place(4, kind="shard_map", devices=[1, 3])
    assert [d.id for d in chosen.devices] == [1, 3] and chosen.lanes == 2
    assert place(4, kind="vmap", devices=[2]).devices[0].id == 2


@pytest.mark.parametrize("kind", ["vmap", "shard_map"])
def test_training_stays_on_the_chosen_devices(kind):
    devices = [2] if kind == "vmap" else [1, 3]
    run, _ = engine("local_sgd", 4, kind, devices)
    state = run.init(jax.random.key(0))
    assert sorted(d.id for d in state.params["w1"].devices()) == devices


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "tpu"}, "choose one of auto, vmap"),
        ({"devices": 0}, r"placement.devices=0 \(in a script, devices\): give how"),
        ({"devices": [1, 1]}, "each device once"),
        ({"devices": 9}, r"devices\) needs 9 devices, but JAX has 4.*num_cpu_dev"),
        ({"devices": [9]}, "needs 10 devices"),
        ({"devices": 3}, r"workers=6 or 9, or placement.devices=2 \(in a script, dev"),
        ({"kind": "vmap", "devices": 2}, r"one device, .*=2 \(in a script, devices\)"),
    ],
)
def test_I1_refusals_say_what_to_do(options, message):
    with pytest.raises(parsgd.UserError, match=message):
        place(8, **options)


def test_no_workers():
    with pytest.raises(parsgd.UserError, match="workers=0"):
        place(0)
