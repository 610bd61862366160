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
from fake_jobs import fake_job
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


def test_list_shows_the_choices(command):
    code, out, _ = command("list", "strategy")
    assert code == 0
    assert re.search(r"^  local_sgd +Local SGD", out, re.MULTILINE)
    assert command("list", "nothing")[0] == 2


@pytest.fixture
def own_choice(tmp_path):
    """Writes a file into a folder for --config-dir."""

    def write(name, *lines):
        path = tmp_path / "own" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")

    return write


HEADER = "# @package _global_"
ONE_BIT = (
    "local_steps: 1",
    "strategy:",
    "  _target_: parsgd.data_parallel",
    "  reducer:",
    "    _target_: parsgd.error_feedback",
    "    compressor: {_target_: parsgd.one_bit}",
)


def test_list_shows_the_users_own_choices(command, own_choice):
    own_choice("strategy/mine", HEADER, "# My own.", *ONE_BIT)
    code, out, _ = command("list", "--config-dir", "own", "strategy")
    assert code == 0
    assert re.search(r"^  local_sgd .*\n  mine +My own\.$", out, re.MULTILINE)
    assert "mine" not in command("list", "strategy")[1]


def test_list_says_something_of_a_choice_without_a_comment(command, own_choice):
    own_choice("strategy/mine", HEADER, *ONE_BIT)
    own_choice("optimizer/mine", "_target_: optax.lion", "learning_rate: 0.1")
    own_choice("network/mine", "", "rate: 5.0e+6", "latency: 0.0")
    _, out, _ = command("list", "--config-dir", "own")
    for said in ("parsgd.data_parallel", r"optax\.lion", r"rate: 5\.0e\+6"):
        assert re.search(rf"^  mine +{said}$", out, re.MULTILINE), out


def test_a_reducer_is_composed_in_the_users_own_file(command, own_choice, tmp_path):
    own_choice("strategy/mine", HEADER, *ONE_BIT)
    sizes = ("workers=2", "samples=320", "evaluations=2")
    runs = {}
    for name, own in (("mine", ["--config-dir", "own"]), ("one_bit_sgd", [])):
        asked = ("train", *own, f"strategy={name}", *sizes, f"hydra.run.dir={name}")
        code, _, err = command(*asked)
        assert code == 0, err
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        runs[name] = [json.loads(line) | {"seconds": None} for line in lines]
    assert len(runs["mine"]) == 3
    assert runs["mine"][-1]["bytes"] > 0
    assert runs["mine"] == runs["one_bit_sgd"]


@pytest.mark.parametrize("lines", [ONE_BIT, ("# My own.", HEADER, *ONE_BIT)])
@pytest.mark.parametrize("name", ["train", "traffic"])
def test_a_missing_or_late_package_comment_is_explained(
    command, own_choice, name, lines
):
    own_choice("strategy/mine", *lines)
    code, _, err = command(name, "--config-dir", "own", "strategy=mine")
    assert code == 2
    assert "does not begin with `# @package _global_`" in err
    assert "the very first line of the file" in err
    own_choice("experiment/mine", "# My own.", HEADER, "epochs: 1")
    code, _, err = command(name, "--config-dir", "own", "+experiment=mine")
    assert code == 2
    assert "experiment/mine.yaml does not begin with `# @package _global_`" in err


def test_a_file_with_the_name_of_a_shipped_one_is_refused(command, own_choice):
    own_choice("strategy/local_sgd", HEADER, *ONE_BIT)
    code, _, err = command("traffic", "--config-dir", "own", "strategy=local_sgd")
    assert code == 2
    assert "local_sgd.yaml has the name of a shipped file" in err


def test_report_of_two_folders_goes_into_the_first(command, tmp_path):
    for workers, name in enumerate("ab", start=1):
        fake_job(tmp_path / name / "0", workers=workers)
    code, out, _ = command("report", "a", "b")
    assert code == 0
    assert "2 of 2 jobs completed\ntable: a/report/table.md" in out
    assert "page: a/report/index.html" in out
    assert "goes to `report` in the\nfirst" in command("report", "--help")[1]


def test_report_tells_many_bad_jobs_by_their_reasons(command, tmp_path):
    fake_job(tmp_path / "s" / "0")
    for number in range(1, 5):
        fake_job(tmp_path / "s" / str(number), status="failed", reason="no\nroom")
    _, out, _ = command("report", "s")
    assert out.count("failed: s/") == 4 and "failed: s/4: no\nroom" in out
    for number in range(5, 20):
        fake_job(tmp_path / "s" / str(number), status="failed", reason="no\nroom")
    fake_job(tmp_path / "s" / "20", status="diverged", reason="too fast")
    _, out, _ = command("report", "s")
    assert out.count("failed: s/") == 1 and "room" not in out
    assert "failed: s/1 (and 18 more: 2, 3, 4, " in out and ", ...): no\n" in out
    assert "diverged: s/20: too fast" in out
    assert "1 of 21 jobs completed" in out
    for number in range(21, 25):
        fake_job(tmp_path / "s" / str(number), status="failed", reason=f"no {number}")
    _, out, _ = command("report", "s")
    assert "and 3 other reasons: see s/22, s/23, s/24\n" in out


def test_a_report_without_a_table_any_more_does_not_leave_the_old_one(
    command, tmp_path
):
    fake_job(tmp_path / "s" / "0")
    assert command("report", "s")[0] == 0
    there = {path.name for path in (tmp_path / "s" / "report").iterdir()}
    fake_job(tmp_path / "s" / "0", status="failed", reason="no room", evaluations=0)
    for number, kept in enumerate(("kept in s/report/before\n", "no room\n")):
        code, out, _ = command("report", "s")
        assert code == 0 and "there is no table: 1 failed of 1" in out
        assert out.endswith(kept), number
    assert [path.name for path in (tmp_path / "s" / "report").iterdir()] == ["before"]
    assert {p.name for p in (tmp_path / "s" / "report" / "before").iterdir()} == there


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("report", "D", "taget=0.9"), "target"),
        (("report", "D", "--target", "0.9"), "target"),
        (("report", "D", "--frob"), None),
        (("export", "D", "--step=best"), "step"),
        (("export", "ou=x", "D"), "out"),
        (("evaluate", "D", "stepp=2"), "step"),
    ],
)
def test_a_wrong_option_is_no_folder(command, tmp_path, words, near):
    (tmp_path / "D").mkdir()
    code, _, err = command(*words)
    wrong = next(word for word in words if "=" in word or word[0] == "-")
    guess = f"; did you mean {near}=...?" if near else "."
    assert code == 2
    assert f"{wrong}: parsgd {words[0]} has no such option{guess} It takes" in err
    (line,) = err.splitlines()
    for name in ("target", "sort", "out") if words[0] == "report" else ("step",):
        assert f"{name}=..." in line


def test_a_folder_may_look_like_an_option(command, tmp_path):
    fake_job(tmp_path / "lr=1" / "0")
    assert command("report", "lr=1")[0] == 0
    code, _, err = command("report", "runs/lr=2")
    assert code == 2 and "no folder runs/lr=2" in err


def test_report_complains_about_folders_without_jobs(command, tmp_path):
    assert command("report")[0] == 2
    code, _, err = command("report", "nowhere")
    assert code == 2
    assert "no folder nowhere" in err
    assert command("report", str(tmp_path))[0] == 2


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
