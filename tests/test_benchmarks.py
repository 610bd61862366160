"""What a bench says of its windows."""

import json
import os
import random
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import parsgd
from benchmarks import (
    __main__ as everything,
    candidates,
    kill_test,
    lab,
    overhead,
    saving,
    summary,
)
from benchmarks.__main__ import cells
from benchmarks.candidates import Cell
from benchmarks.data import Images
from parsgd.training.engine import Engine


def window(name, devices, *rates):
    found = {"name": name, "devices": devices, "rates": rates, "error": None}
    return found | {"median": sorted(rates)[len(rates) // 2] if rates else None}


def test_the_overhead_of_a_run_is_taken():
    found = overhead.run(parsgd.digits(), Cell("local", "mlp_258k", 4), 12)
    assert found.trained > 0 and found.beside > 0


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
    assert {name for name in listed if name.endswith(" measured")} == {
        f"{name} measured" for name in known
    }


@pytest.fixture
def pretended(monkeypatch, tmp_path):
    """Calls the lab's main with options; returns the store, whose cells are made up."""
    store = tmp_path / "lab.json"
    made = []

    def measured(cell, options):
        made.append(cell.name)
        return cell._asdict() | {"error": "made up", "windows": options.windows}

    def call(*words):
        made.clear()
        words = ["lab", "--store", f"{store}", "--only", "/1gbit/sync_sgd", *words]
        monkeypatch.setattr(sys, "argv", words)
        lab.main()
        return json.loads(store.read_text()), list(made)

    machine = {"cpu": "A", "cores": 2, "python": "3", "versions": {}, "date": "today"}
    monkeypatch.setattr(lab.measure, "machine", lambda: {**machine, "versions": {}})
    monkeypatch.setattr(lab, "version", lambda name: "1.0")
    monkeypatch.setattr(lab, "measured", measured)
    return call, machine


ALL = [f"{model}/w{n}/1gbit/sync_sgd" for model in lab.MODELS for n in lab.PROCESSES]


def test_a_store_keeps_to_its_machine_and_its_settings(pretended, capsys):
    call, machine = pretended
    assert call()[1] == ALL
    for words in (["--windows", "3"], ["--windows", "3", "--again"], ["--free"]):
        with pytest.raises(SystemExit):
            call(*words)
        said = capsys.readouterr().err
        assert "was measured with other conditions" in said
        assert "give another --store, or delete this file" in said
    machine["date"] = "tomorrow"
    assert call("--again")[0]["machine"]["date"] == "today"
    machine["cpu"] = "B"
    for words in ((), ("--again",)):
        with pytest.raises(SystemExit):
            call(*words)
        assert "(cpu A, now B)" in capsys.readouterr().err
    store, made = call("--list")
    assert sorted(store["cells"]) == sorted(ALL) and not made
    assert store["machine"]["cpu"] == "A"


def test_a_quick_lab_does_what_is_given_beside_it(pretended, capsys):
    call, _ = pretended
    store, made = call("--quick", "--windows", "5", "--processes", "4", "2")
    assert made == ["mlp_258k/w4/1gbit/sync_sgd", "mlp_258k/w2/1gbit/sync_sgd"]
    assert {cell["windows"] for cell in store["cells"].values()} == {5}
    assert store["settings"]["target"] == 0.7
    with pytest.raises(SystemExit):
        call("--quick", "--publish")
    assert "a short try is not for docs/" in capsys.readouterr().err


def test_a_quick_benchmark_is_of_its_four_cells(monkeypatch, capsys):
    assert [cell.name for cell in cells(True, False, "cnn")] == ["sync/cnn/w2"]
    assert len(cells(True, False, "")) == len(cells(False, False, "")) == 4
    assert len(cells(False, False, "cnn")) == len(cells(False, True, "cnn")) == 25
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--only", "cnn/w64"])
    with pytest.raises(SystemExit):
        everything.main()
    assert "of the four of --quick contains 'cnn/w64'" in capsys.readouterr().err


def test_neither_way_to_save_is_always_first():
    asked = []
    pairs = saving.measured(
        lambda n: asked.append(n) or 10 * n + len(asked), 3, saves=2
    )
    assert asked == [0, 2, 2, 0, 0, 2]
    assert pairs == [(22, 1), (23, 4), (26, 5)]


def test_only_kills_that_came_in_time_are_counted():
    run = subprocess.Popen([sys.executable, "-c", ""])
    run.wait()
    assert kill_test.kill(run, 1, random.Random(0)) is False
    run = subprocess.Popen(["sleep", "60"])
    assert kill_test.kill(run, 1, random.Random(0)) is True


@pytest.mark.parametrize("in_time", [True, False])  # the first of them
def test_a_run_that_was_done_before_its_kill_is_begun_anew(
    monkeypatch, tmp_path, in_time
):
    folder, counted = tmp_path / "run", []

    def start(*words):
        (folder / "checkpoints/1").mkdir(parents=True, exist_ok=True)
        folder.with_suffix(".log").touch()
        return SimpleNamespace(poll=lambda: None, wait=lambda: 0)

    def kill(*words):
        counted.append(len(counted) > 0 or in_time)
        return counted[-1]

    monkeypatch.setattr(kill_test, "start", start)
    monkeypatch.setattr(kill_test, "kill", kill)
    monkeypatch.setattr(kill_test, "newest", lambda folder: time.monotonic())
    monkeypatch.setattr(kill_test, "saving", lambda folder: True)
    places = kill_test.killed(folder, [], 2, random.Random(0), 1)
    assert sum(places.values()) == 2 and len(counted) == (2 if in_time else 3)
    assert folder.exists()


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
