# ruff: noqa: F811  (pytest finds imported fixtures by their name)
"""The command as its user sees it: what is printed, and the exit code."""

import ast
import importlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SHORT, command, in_new_process  # noqa: F401
from rich.console import Console

import parsgd
from parsgd.progress import Progress


def test_help_lists_the_commands(command):
    code, out, _ = command("--help")
    assert code == 0
    for name in ("train", "traffic", "report", "list"):
        assert f"parsgd {name}" in out
        assert command(name, "--help")[0] == 0
    assert command()[0] == 2
    assert "no such command; did you mean train?" in command("tarin")[2]
    assert "no such command; `parsgd --help`" in command("zzz")[2]


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["list", "strategy"]])
def test_help_and_lists_load_nothing_that_takes_long(arguments):
    heavy = ("jax", "optax", "numpy", "hydra", "plotly", "polars", "sklearn")
    code = (
        f"import sys; from parsgd.cli import main; main({arguments});"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert out.stdout.splitlines()[-1] == "[]"


def test_public_names_are_found_where_type_checkers_see_them():
    seen = {}
    for node in ast.parse(Path(parsgd.__file__).with_suffix(".pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            module = ".".join(filter(None, ["parsgd", node.module]))
            seen |= {alias.name: module for alias in node.names}
            assert all(alias.name == alias.asname for alias in node.names)
    assert sorted(seen) == sorted(parsgd.__all__)
    assert {*parsgd.__all__} <= {*dir(parsgd)}
    for name, module in seen.items():
        found = getattr(parsgd, name)
        assert found is getattr(importlib.import_module(module), name), name
    assert parsgd.__getattr__("csv") is parsgd.tasks.csv
    with pytest.raises(AttributeError, match="local_sdg"):
        parsgd.local_sdg  # noqa: B018


def test_a_run_prints_its_sizes_and_leaves_its_files(command, tmp_path):
    code, out, _ = command(
        "train", "strategy=block_momentum", "workers=4", "scaling=sqrt", *SHORT
    )
    assert code == 0
    for expected in (
        "worker_batch 32 = global_batch 128; 11 steps and 1408 samples per epoch",
        "30 of 1438 samples dropped per epoch",
        "learning rate 0.1 x 2 = 0.2 (sqrt: global batch 128 against reference batch",
        "block momentum eta 0.75 (1 - 1/W)",
        "ratio 11",
        "4 workers = ",
    ):
        assert expected in out
    (folder,) = tmp_path.glob("outputs/*/*")
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "completed"
    assert result["overrides"][:2] == ["strategy=block_momentum", "workers=4"]
    assert result["config"]["optimizer"]["learning_rate"] == 0.1
    assert result["summary"]["learning_rate"] == 0.2
    assert result["summary"]["lr_factor"] == 2
    assert result["summary"]["peak_memory_bytes"] > 1e6
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert "block momentum eta" in (folder / "train.log").read_text()


def test_the_peak_memory_of_an_earlier_job_is_not_this_ones(
    command, tmp_path, monkeypatch
):
    written = Path.write_text

    def only_readable(path, *args, **more):
        if path.is_relative_to("/proc"):
            raise PermissionError
        return written(path, *args, **more)

    monkeypatch.setattr(Path, "write_text", only_readable)
    code, _, err = command("train", *SHORT)
    assert code == 0, err
    (file,) = tmp_path.glob("outputs/*/*/result.json")
    assert json.loads(file.read_text())["summary"]["peak_memory_bytes"] is None


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["strategy=bmfu"], "Choose one of adasum, block_momentum"),
        (["wokers=4"], "Did you mean workers?"),
        (["strategy=local_sgd", "+strategy.momentun=keep"], "strategy.momentun"),
        (["global_batch=10", "workers=4"], "global_batch=10"),
        (["--frob"], "--frob"),
    ],
)
def test_J4_wrong_use_ends_with_2_and_no_traceback(command, arguments, expected):
    code, out, err = command("train", *arguments)
    assert code == 2
    assert expected in err
    assert "Traceback" not in out + err


def test_J4_a_traceback_where_asked_for(command):
    _, _, err = command("train", "global_batch=10", "workers=4", "debug=true")
    assert "Traceback" in err


def test_a_result_is_not_written_over(command, tmp_path):
    where = (*SHORT, "hydra.run.dir=run")
    assert command("train", *where)[0] == 0
    before = (tmp_path / "run/result.json").read_bytes()
    code, _, err = command("train", "seed=1", *where)
    assert code == 2 and "result of another run, which differs in seed: choose" in err
    assert (tmp_path / "run/result.json").read_bytes() == before


def test_a_diverged_run_ends_with_1(command):
    code, _, err = command("train", "optimizer.learning_rate=1e30", *SHORT)
    assert code == 1
    assert "diverged: training loss not finite" in err


def test_traffic_prints_a_table_and_its_ratio(command):
    code, out, _ = command(
        "traffic", "strategy=local_sgd", "workers=4", "local_steps=4"
    )
    assert code == 0
    assert re.search(r"all-reduce .*float32 .*\[64, 64\] .*24,576", out)
    assert "ratio 4" in out
    code, out, _ = command("traffic", "strategy=post_local_sgd", "workers=4")
    assert "per round until step 110, 1 local step each" in out
    assert "per round from step 110 on, 16 local steps" in out
    assert command("traffic", "strategy=bmfu")[0] == 2


def test_traffic_of_an_experiment_says_which_job_it_shows(command):
    _, out, _ = command("traffic", "+experiment=demo")
    first = "strategy=sync_sgd workers=2 scaling=none seed=0 +experiment=demo"
    assert out.startswith(f"the first of 32 jobs of this sweep: {first}\n")
    assert "2 workers x" in out
    _, out, _ = command("traffic", "+experiment=demo", "workers=8", "seed=0")
    assert out.startswith("the first of 8 jobs") and "8 workers x" in out
    assert "the first of" not in command("traffic", "workers=2")[1]


def test_I1_devices_are_made_before_jax_starts(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    done = in_new_process(
        tmp_path,
        "train",
        "placement=shard_map",
        "placement.devices=8",
        "workers=8",
        "samples=256",
        "evaluations=1",
        JAX_PLATFORMS="cpu",
        XLA_FLAGS="",
    )
    assert done.returncode == 0, done.stderr
    assert "8 workers = 8 cpu devices x 1 lane (" in done.stdout
    assert (tmp_path / "cache" / "jax").is_dir()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_gets_a_bar_and_a_pipe_gets_lines(terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120)
    summary = {"bytes_per_round": 1e6, "bytes_dense_per_round": 4e6}
    summary |= {"calls_per_round": {"all-reduce": 1}}
    record = {"step": 5, "epoch": 0.5, "samples": 640, "seconds": 2.0, "bytes": 5e6}
    record |= {"batch_loss": 0.25, "test_accuracy": 0.75}
    display = Progress(console, ["learning rate"])
    display.start(summary, ["sizes"])
    display.record(record)
    display.progress(5, 10, record)
    display.end(None)
    text = out.getvalue()
    assert "sizes\nlearning rate\nper round a worker sends 1.0 MB" in text
    values = "loss 0.2500, accuracy 0.7500, 320 samples/s on average, 5.0 MB sent"
    assert values in text
    assert ("50%" in text) == terminal
    # In a terminal it is what stays when the bar is gone.
    assert text.count(f"step 5, epoch 0.50: {values}") == 1


def test_a_huge_loss_is_a_short_number():
    console = Console(file=io.StringIO(), width=120)
    record = {"step": 5, "epoch": 0.5, "samples": 640, "seconds": 0, "bytes": 0}
    Progress(console).record(record | {"batch_loss": 1.2345e30})
    assert "loss 1.23e+30, " in console.file.getvalue()


def test_a_reader_that_has_enough_is_no_mistake():
    command = (
        f"{sys.executable} -m parsgd train --help | head -1; echo ${{PIPESTATUS[0]}}"
    )
    run = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120
    )
    assert run.stderr == ""
    assert run.stdout.splitlines()[-1] in ("0", "141")


def test_resume_is_a_key_of_train(command):
    code, _, err = command("resume", "outputs/run")
    assert code == 2 and "`parsgd train resume=DIR` goes on with a run" in err
