"""What links carry beside what programs count, and the tables made of it."""

import argparse
import json
import re

import pytest
from command_line import in_new_process
from documents import ROOT
from needs_links import needs_links

from parsgd.lab.command import table, together
from parsgd.lab.counters import HEADER, Counters
from parsgd.lab.wire import Wire
from parsgd.training.observer import Observer


def record(round, bytes, seconds=0.0):
    return {"round": round, "bytes": bytes, "seconds": seconds}


def test_wire_counts_training_and_nothing_else():
    carried = 0

    def send(payload, packets=1):
        nonlocal carried
        carried += payload + 1j * packets

    def read():
        sent = int(carried.real) + HEADER * int(carried.imag)
        return Counters(sent, 0, int(carried.imag), 0)

    seen = []

    class Inner(Observer):
        def progress(self, step, steps, record):
            send(10_000)  # as what an observer does itself
            seen.append(step)

        def record(self, record):
            send(20_000)

    calls = {"all-reduce": 1, "all-gather": 2}
    wire = Wire(Inner(), read)
    send(1_000_000)  # the processes find each other
    wire.start({"workers": 2, "parameters": 75, "calls_per_round": calls}, [])
    send(50_000)
    wire.record(record(0, 0))
    send(300 + 900_000)  # a round, after it was rehearsed
    wire.progress(1, 8, record(1, 300, 1.0))
    send(1200, packets=3)
    wire.progress(5, 8, record(5, 1500, 3.0))
    send(70_000)  # a readout
    wire.record(record(5, 1500, 3.0))
    send(900, packets=2)
    wire.progress(8, 8, record(8, 2400, 4.5))
    wire.record(record(8, 2400, 4.5))
    result = wire.result()
    assert result["payload"] == result["counted"] == 2100
    assert result["sent"] == 2100 + 5 * HEADER
    assert (result["rounds"], result["dispatches"], result["seconds"]) == (7, 2, 3.5)
    assert (result["workers"], result["parameters"]) == (2, 75)
    assert result["calls_per_round"] == calls
    # 4 parts of an all-reduce and 2 of each all-gather, in each of 7 rounds.
    assert result["expected"] == 2100 + 7 * 8 * 144
    assert seen == [1, 5, 8]
    assert wire.resumed is not None  # what else an observer is told, the inner one is


def shown(workers=2, rounds=9):
    one = {
        "workers": workers,
        "rounds": rounds,
        "dispatches": 2,
        "counted": 1000.0,
        "payload": 1020,
    }
    one |= {"sent": 1046, "received": 0, "expected": 1010.0}
    one["calls_per_round"] = {"permute": 3}
    whole = Counters(2000, 3000, 10, 10)._asdict()
    return table({"processes": 2, "training": [[one, one]], "whole_run": [whole] * 2})


def test_table_compares_what_can_be_compared():
    text = shown()
    assert re.search(r"\n +1 +1,046 +1,020 +1,000 +1,010 +1\.046 +1\.010\n", text)
    assert re.search(r"\n +1 +2,000 +3,000$", text)
    assert "to each of a round's calls: 3 permute" in text
    assert "4 workers share 2 processes" in shown(workers=4)
    assert "1.046" not in shown(workers=4)
    assert "too short to be compared" in shown(rounds=0)


TRAINED = """\
train workers=2 task=synthetic task.features=1024 task.examples=64 task.test_examples=8
task/model=mlp task.model.features=[2048] worker_batch=8 evaluations=1
"""


@pytest.mark.slow
@needs_links
@pytest.mark.parametrize(
    "method",
    [
        "strategy=sync_sgd",
        "strategy=one_bit_sgd",
        "strategy=top_k_sgd strategy.reducer.compressor.density=0.05",
        "strategy=power_sgd strategy.reducer.rank=16",
        "strategy=local_sgd local_steps=2",
    ],
    ids=lambda method: method.split()[0].partition("=")[2],
)
def test_K4_links_carry_what_the_program_counts(tmp_path, method):
    rounds = f"rounds={8 if 'local' in method else 16} hydra.run.dir=run"
    words = [*TRAINED.split(), *method.split(), *rounds.split()]
    ended = in_new_process(
        tmp_path, "lab", "--link", "1gbit", "--output", "lab.json", "--", *words
    )
    assert ended.returncode == 0, ended.stderr
    (job,) = json.loads((tmp_path / "lab.json").read_text())["training"]
    summary = json.loads((tmp_path / "run" / "result.json").read_text())["summary"]
    for one in job:
        assert one["rounds"] == summary["rounds"] - 1  # the first is left out
        expected = summary["bytes"] * one["rounds"] / summary["rounds"]
        assert one["counted"] == pytest.approx(expected)
        # Headers included; none of the exchanges is missing, none is there twice.
        assert one["counted"] <= one["payload"] < one["sent"]
        # Nor is what only measures, such as how far local workers are apart.
        assert one["sent"] < 1.05 * one["counted"]
        assert one["calls_per_round"]
        assert one["counted"] < one["expected"] < 1.03 * one["counted"]
        assert 0.99 < one["payload"] / one["expected"] < 1.02


@pytest.fixture
def bench(monkeypatch):
    """The module that writes the benchmark's tables."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import lab_table

    return lab_table


def measured(method, seconds, link="1gbit", **more):
    cell = {"model": "mlp_258k", "processes": 4, "link": link, "method": method}
    return cell | {"seed": 0, "seconds": seconds, "disturbed": 0.0} | more


@pytest.fixture
def store():
    counted = {"link": "steps", "accuracy": 0.8}
    cells = [
        measured("sync_sgd", [], **counted, steps=100),
        measured("sync_sgd", [], **counted, steps=120),
        measured("local_sgd", [], **counted, steps=90),
        measured("local_sgd", [], **counted, steps=None),
        measured("alone", [0.002]),
        measured("alone, local", [0.003]),
        measured("sync_sgd", [0.007, 0.008, 0.02]),
        measured("local_sgd", [0.004], disturbed=0.3),
        measured("DDP", [0.005]),
        measured("DDP, fp16", None, error="it did\nnot run"),
    ]
    machine = {"cpu": "a CPU", "cores": 2, "python": "3", "date": "today"}
    settings = {"batch": 32, "lr": 0.1, "local_steps": 16, "seconds": 2.0}
    return {
        "cells": {str(i): cell for i, cell in enumerate(cells)},
        "machine": machine | {"versions": {"jax": "1"}},
        "settings": settings | {"target": 0.85, "pinned": True},
    }


def test_times_to_accuracy_are_steps_times_seconds(bench, store):
    text = bench.tables(store)
    assert "### mlp_258k, 4 processes" in text
    rows = [line for line in text.splitlines() if line.startswith("| 1gbit")]
    # 110 steps of 8 ms, of which 2 are there without any exchange; 4 x 32 samples.
    expected = "| 1gbit | sync_sgd | 8 (7-20) | 75% | 16,000 | 110 | 0.88 | 3, 2 |"
    assert expected in rows
    # Beside 3 ms, not 2: with local steps alone, too.
    assert "| 4 (4-4) | 25% | 32,000 | not reached |  | 1, 2 (disturbed) |" in text
    assert "| DDP | 5 (5-5) |  | 25,600 |  |  | 1 |" in text  # not measured alone
    assert "| DDP, fp16 | failed: not run |" in text
    # A run that failed says nothing of the method, whatever it said itself.
    failed = measured("local_sgd", [], link="steps", error="")
    only = [c for c in store["cells"].values() if c["method"] == "sync_sgd"]
    assert (
        bench.steps_of([*only, failed | {"method": "sync_sgd"}], "sync_sgd")[0] == 110
    )
    store["cells"]["failed"] = measured("alone", [], error="")
    assert "| alone | failed: it said nothing |" in bench.tables(store)
    del store["cells"]["failed"]
    # Less than alone is no share of 0 %; it could not be measured.
    store["cells"]["more"] = measured("block_momentum", [0.0029])
    assert "| block_momentum | 2.9 (2.9-2.9) | - | 44,138 |" in bench.tables(store)


def test_what_follows_from_the_tables_is_computed_with_them(bench, store):
    # 242,752 parameters of 4 bytes, of which 1.5 times that is sent, at 1 Gbit/s.
    ideal = 0.002 + 1.5 * 4 * 242_752 * 8 / 1e9
    more = [
        measured("one_bit_sgd", [0.004]),
        measured("power_sgd", [0.012]),
        measured("DDP", [0.005], link="10gbit"),
        measured("one_bit_sgd", [], link="steps", accuracy=0.8, steps=150),
    ]
    store["cells"] |= {f"more {i}": cell for i, cell in enumerate(more)}
    expected = (
        f"| mlp_258k, 4 | 1gbit | {0.008 / ideal:.2f} | 0.62 | 0.50-1.50 "
        "| one_bit_sgd 0.6 s | 0.88 s |"
    )
    assert bench.summary(store).splitlines()[2:] == [expected]


def test_the_page_says_what_was_measured(bench):
    store = json.loads((ROOT / "docs" / "figures" / "lab.json").read_text())
    page = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    assert f"{bench.BEGIN}\n{bench.body(store)}\n{bench.END}" in page


def test_measurements_are_published_between_their_marks(bench, store, tmp_path):
    page = tmp_path / "lab.md"
    page.write_text(f"before\n{bench.BEGIN}\nold\n{bench.END}\nafter\n")
    bench.publish(store, tmp_path)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert (
        "old" not in text and "a CPU, 2 cores" in text and bench.tables(store) in text
    )
    assert (tmp_path / "figures" / "lab.png").stat().st_size > 1000
    assert json.loads((tmp_path / "figures" / "lab.json").read_text()) == store
    bench.publish(store, tmp_path)
    assert page.read_text() == text
    with pytest.raises(SystemExit, match="nothing was measured"):
        bench.publish({"cells": {}}, tmp_path)
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="has no lines"):
        bench.publish(store, tmp_path)


def test_windows_are_whole_rounds_that_last_long_enough(bench):
    from benchmarks import lab_runs

    options = argparse.Namespace(seconds=2.0)
    for method, parts in lab_runs.METHODS.items():
        for link in ("100mbit", "unlimited"):
            cell = lab_runs.Cell("mlp_6_9m", 4, link, method)
            steps = lab_runs.window_steps(cell, options)
            assert steps % parts.local_steps == 0
            assert 0 < steps <= 200
            if link == "100mbit" and method in ("sync_sgd", "DDP"):
                assert 2 <= steps <= 3  # of about a second each


def test_jobs_of_processes_are_paired_by_their_number():
    """The second process failed in job 0, the first in job 2."""
    first = [{"job": 0, "rounds": 5}, {"job": 1, "rounds": 6}]
    second = [{"job": 1, "rounds": 6}, {"job": 2, "rounds": 7}]
    assert together([first, second]) == [[first[1], second[0]]]
    assert together([first, []]) == []
    assert together([first]) == [[first[0]], [first[1]]]
