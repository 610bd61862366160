"""What is said of the bytes: at the start of a run, and by ``parsgd traffic``."""

import errno
import io
import json
import re

import pytest
from command_line import command  # noqa: F401
from rich.console import Console
from rich.filesize import decimal

from parsgd.progress import Progress, compare


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ({}, "per round a worker"),
        ({"bytes_from_step": 0, "bytes_until_step": None}, "per round a worker"),
        ({"bytes_from_step": 40}, "per round from step 40 on, a worker"),
        ({"bytes_from_step": 0, "bytes_until_step": 9}, "per round until step 9, a wo"),
    ],
)
def test_the_start_says_which_phase_its_bytes_are_of(steps, said):
    console = Console(file=io.StringIO(), width=120)
    summary = {"bytes_per_round": 1e6, "bytes_dense_per_round": 4e6, **steps}
    summary |= {"calls_per_round": {}}
    summary |= {"bytes_planned": 3e6, "bytes_dense_planned": 6e6}
    display = Progress(console)
    display.start(summary, [])
    display.end(None)
    assert console.file.getvalue().startswith(said)
    whole = "in the whole run, a worker sends 3.0 MB; all-reduced gradients: 6.0 MB"
    assert (whole in console.file.getvalue()) == any(steps.values())


@pytest.mark.parametrize("strategy", ["one_bit_adam", "post_local_sgd"])
def test_traffic_of_phases_is_told_apart_and_adds_up_to_the_run(
    strategy,
    command,  # noqa: F811
    tmp_path,
):
    words = (f"strategy={strategy}", "workers=4", "epochs=2", "evaluations=1")
    code, out, err = command("traffic", *words)
    assert code == 0, err
    (first,) = (line for line in out.splitlines() if line.startswith("per round until"))
    (second,) = (line for line in out.splitlines() if line.startswith("per round from"))
    end = first.split()[4].rstrip(",")
    assert second.startswith(f"per round from step {end} on, a worker sends")
    assert command("train", *words)[0] == 0
    (file,) = tmp_path.glob("outputs/*/*/result.json")
    sent = json.loads(file.read_text())["summary"]["bytes"]
    assert f"in the whole run, a worker sends {decimal(round(sent))};" in out


def test_traffic_of_one_phase_needs_no_sum(command):  # noqa: F811
    code, out, _ = command("traffic", "strategy=local_sgd", "workers=4", "epochs=2")
    assert code == 0
    assert "per round a worker sends" in out and "whole run" not in out


@pytest.mark.parametrize("sent, more", [(400, False), (400.1, False), (800, True)])
def test_more_than_without_compression_is_said(sent, more):
    said = compare(sent, 400, calls={"all-gather": 2})
    assert "more than" not in compare(sent, 400, calls={"all-reduce": 1})
    assert ("more than without compression" in said) == more
    assert ("two_sided=true" in said) == more


@pytest.mark.parametrize(
    ("option", "more"), [((), True), (("feedback.two_sided=true",), False)]
)
def test_traffic_says_where_a_gathered_code_costs_more_and_what_to_do(
    option,
    more,
    command,  # noqa: F811
):
    words = ("strategy=compressed", "compressor=linear_8bit", "workers=16", *option)
    code, out, err = command("traffic", *words, "epochs=1")
    assert code == 0, err
    assert ("more than without compression" in out) == more


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (55, "loss 0.2500, accuracy 0.7500 "),
        (80, "loss 0.2500, accuracy 0.7500, 320/s, 5.0 MB "),
        (120, "loss 0.2500, accuracy 0.7500, 320 samples/s on average, 5.0 MB sent "),
    ],
)
def test_the_bar_fits_the_terminal_and_leaves_the_last_line(width, shown):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, no_color=True, width=width)
    record = {"step": 5, "epoch": 0.5, "samples": 640, "seconds": 2.0, "bytes": 5e6}
    record |= {"batch_loss": 0.25, "test_accuracy": 0.75}
    display = Progress(console)
    sent = {"bytes_per_round": 0, "bytes_dense_per_round": 0}
    display.start(sent | {"calls_per_round": {}}, [])
    display.record(record)
    display.progress(5, 10, record)
    display.end(None)
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", out.getvalue())
    frames = re.split(r"[\r\n]+", plain)
    (bar,) = {frame for frame in frames if " 50% " in frame}
    assert f" 50% {shown}" in bar and "━" * 4 in bar
    assert len(bar) <= width and "…" not in bar
    last = "step 5, epoch 0.50: loss 0.2500, accuracy 0.7500, 320 samples/s on average"
    assert frames[-2].startswith(last)


def test_the_bar_shows_the_accuracy_once_it_is_known():
    out = io.StringIO()
    display = Progress(Console(file=out, force_terminal=True, width=120))
    sent = {"bytes_per_round": 0, "bytes_dense_per_round": 0}
    display.start(sent | {"calls_per_round": {}}, [])
    record = {"step": 5, "epoch": 0.5, "samples": 640, "seconds": 2.0, "bytes": 5e6}
    display.progress(5, 10, record)
    display.record(record | {"test_accuracy": 0.75})
    assert display._bar is not None
    display._bar.refresh()
    assert "50%" in out.getvalue() and "accuracy 0.7500" in out.getvalue()
    display.end(None)


def test_jobs_of_a_sweep_say_what_is_new_and_how_they_ended(monkeypatch):
    monkeypatch.setattr(Progress, "said", set())
    console = Console(file=io.StringIO(), width=120)
    summary = {"bytes_per_round": 1e6, "bytes_dense_per_round": 4e6}
    summary |= {"calls_per_round": {}}
    for job in ("4 workers", "8 workers"):
        display = Progress(console, ["learning rate 0.1"], brief=True)
        display.start(summary, [job])
        for step in (5, 10):
            record = {"step": step, "epoch": 1, "seconds": 0, "bytes": 0}
            display.record(record | {"test_accuracy": step / 100})
        display.end(None)
    heads = [line.partition(",")[0] for line in console.file.getvalue().splitlines()]
    first, second = heads.index("4 workers"), heads.index("8 workers")
    assert heads[first + 1] == "learning rate 0.1"
    assert [h for h in heads if h.startswith("step")] == ["step 10"] * 2
    assert heads[second:] == ["8 workers", "step 10"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("strategy=top_k_sgd",), ["as it is: one-dimensional", "compressed"]),
        (
            ("strategy=top_k_sgd", "strategy.reducer.min_size=1000"),
            ["as it is: one-dimensional", "compressed", "fewer than min_size=1000"],
        ),
        (
            ("strategy=top_k_sgd", "strategy.reducer.bucket=true"),
            ["compressed, all arrays as one"],
        ),
        (
            ("strategy=power_sgd", "strategy.reducer.rank=9"),
            ["as it is: one-dimensional", "compressed", "would not become smaller"],
        ),
        (("strategy=demo",), ["as it is: one-dimensional", "compressed"]),
        (("strategy=sync_sgd",), []),
    ],
)
def test_traffic_says_which_arrays_are_compressed(command, words, said):  # noqa: F811
    code, out, err = command("traffic", *words, "workers=4")
    assert code == 0, err
    _, title, table = out.partition("the model's arrays")
    assert bool(title) == bool(said)
    rows = table.splitlines()
    found = " ".join(line.strip("│ ").rpartition("│")[2].strip() for line in rows)
    for how in said:
        assert how in found
    for name in ("['Dense_0']['kernel']", "['head']['bias']"):
        assert (name in table) == bool(said)


class Closed(io.StringIO):
    """What a terminal is once its window was closed."""

    error = OSError(errno.EIO, "gone")

    def write(self, text):
        raise self.error


def test_a_terminal_that_is_closed_does_not_end_a_run():
    console = Console(file=io.StringIO(), force_terminal=True)
    display = Progress(console)
    sent = dict.fromkeys(("bytes_per_round", "bytes_dense_per_round"), 0)
    display.start(sent | {"calls_per_round": {}}, [])
    console.file = Closed()
    display.say("a worker's gradient was not finite")
    display.end(None)


def test_a_disk_that_is_full_does(monkeypatch):
    monkeypatch.setattr(Closed, "error", OSError(errno.ENOSPC, "full"))
    with pytest.raises(OSError, match="full"):
        Progress(Console(file=Closed())).say("a line")
