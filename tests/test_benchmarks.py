"""What a bench says of its windows."""

import json
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from benchmarks import candidates, lab, summary
from benchmarks.candidates import Cell
from benchmarks.data import Images
from parsgd.training.engine import Engine


def window(name, devices, *rates):
    found = {"name": name, "devices": devices, "rates": rates, "error": None}
    return found | {"median": sorted(rates)[len(rates) // 2] if rates else None}


HAND = window("one device, serial lanes", 1, 100.0, 120.0, 110.0)
TWO = window("2 devices x 2 serial lanes", 2, 100.0, 100.0, 100.0)
AUTO = window("fit, auto", 2, 99.0, 90.0, 121.0)
VMAP = window("fit, vmap", 1, 50.0, 60.0, 66.0)
SPREAD = window("fit, shard_map 2 x 2", 2, 80.0, 90.0, 95.0)
DDP = window("PyTorch DDP, 2 processes", 0, 10.0, 10.0, 11.0)


def test_ratios_are_medians_over_rounds_of_windows():
    cell = [HAND, TWO, AUTO, VMAP, SPREAD, DDP]
    # 0.99, 0.75 and 1.1 of the fastest by its median, which is one device's.
    assert summary.shares(cell) == {"auto": 0.99, "vmap": 0.5, "shard_map": 0.9}
    assert summary.row(cell) == "110 | 99 | 0.99 | 0.50 | 0.90 | 10 (9.9 x) |"
    report = {"cells": {"local/mlp/w4": cell, "local/mlp/w8": cell[:3]}}
    assert summary.counts(report) == [
        ("auto", "2 of 2 at 0.95 or more"),
        ("vmap", "0 of 1 at 0.95 or more"),
        ("shard_map", "0 of 1 at 0.95 or more"),
    ]


@pytest.mark.parametrize(
    ("cell", "row"),
    [
        ([HAND, VMAP], "110 |  |  | 0.50 |  |  |"),
        ([AUTO, DDP], " | 99 |  |  |  | 10 (9.9 x) |"),
        ([window("fit, auto", 2), TWO], "100 |  |  |  |  |  |"),
    ],
    ids=["no auto", "no loop by hand", "auto failed"],
)
def test_what_was_not_measured_stays_empty(cell, row):
    assert summary.row(cell) == row


def test_a_file_of_another_commit_is_not_gone_on_with(tmp_path):
    file = tmp_path / "windows.json"
    file.write_text(json.dumps({"commit": "other", "windows": [], "cells": {}}))
    command = [sys.executable, "-m", "benchmarks", "--output", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "was measured with other commit and windows: move it away" in ended.stderr


def test_a_lab_measures_as_what_is_published_was(tmp_path, monkeypatch, capsys):
    published = lab.ROOT / "docs/figures/lab.json"
    store = tmp_path / "lab.json"
    store.write_bytes(published.read_bytes())  # refused where the settings differ
    monkeypatch.setattr(lab, "version", lambda name: "1.0")
    monkeypatch.setattr(sys, "argv", ["lab", "--store", f"{store}", "--list"])
    lab.main()
    known = json.loads(store.read_text())["cells"]
    listed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert {*listed} == {f"{name} measured" for name in known}


PEER = """
import argparse
import numpy as np, torch
from benchmarks import data, lab_ddp
images = data.Images(np.zeros((64, 784), np.uint8), np.zeros(64, np.int32), "none")
data.load = lambda: images
names = {"model": "mlp_258k", "batch": 8, "lr": 0.1, "seed": 0}
train = lab_ddp._start(argparse.Namespace(hook="none", **names))[1]
net = train(2)
print(net.gradient_as_bucket_view)
zeroed = []
zero_grad = torch.optim.SGD.zero_grad
def spied(self, *words, **more):
    zero_grad(self, *words, **more)
    zeroed.append(all(p.grad is None for p in net.parameters()))
torch.optim.SGD.zero_grad = spied
train(1)
print(zeroed)
lab_ddp._leave()
"""


def test_the_peer_is_not_slowed_down(tmp_path):
    pytest.importorskip("torch")
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"
    own = {"PARSGD_COORDINATOR": where, "PARSGD_PROCESS": "0", "PARSGD_PROCESSES": "1"}
    command = [sys.executable, "-c", PEER]
    done = subprocess.run(
        command, env=os.environ | own, capture_output=True, text=True, timeout=120
    )
    # Gradients are not zeroed but dropped, and are not copied to be sent.
    assert done.stdout.split() == ["True", "[True]"], done.stderr


@pytest.mark.parametrize(
    ("cell", "step_seconds", "expected"),
    [
        (Cell("sync", "mlp_258k", 2), 1e-6, 1024),
        (Cell("sync", "mlp_258k", 2), 0.011, 90),
        (Cell("sync", "mlp_258k", 256), 1e-6, 512),  # as many examples as it can name
        (Cell("local", "mlp_258k", 4), 1e-6, 128),
        (Cell("local", "mlp_258k", 4), 5.0, 1),
    ],
)
def test_a_loop_by_hand_is_started_as_often_as_fit(cell, step_seconds, expected):
    h = 1 if cell.algorithm == "sync" else candidates.LOCAL_STEPS
    assert candidates.rounds(cell, h, step_seconds) == expected
    worker = SimpleNamespace(workers=cell.workers, batch=candidates.BATCH)
    most = Engine.capacity(SimpleNamespace(worker=worker), h)
    assert candidates.rounds(cell, h, 1e-9) == most


@pytest.mark.parametrize("algorithm", ["sync", "local"])
def test_a_window_has_whole_dispatches(monkeypatch, algorithm):
    images = Images(np.zeros((64, 784), np.uint8), np.zeros(64, np.int32), "none")
    monkeypatch.setattr("benchmarks.data.load", lambda: images)
    asked = []
    monkeypatch.setattr(candidates, "rounds", lambda *words: asked.append(words) or 3)
    cell = Cell(algorithm, "mlp_258k", 2)
    ways = candidates.handwritten(cell, seconds=1e-6, counts=())
    h = 1 if algorithm == "sync" else candidates.LOCAL_STEPS
    with jax.numpy_rank_promotion("allow"):
        assert ways[0].setup()() == 3 * h * 2 * candidates.BATCH
    ((known, steps, seconds),) = asked
    assert (known, steps) == (cell, h) and 0 < seconds < 5
