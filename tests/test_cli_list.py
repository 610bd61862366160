# ruff: noqa: F811  (pytest finds imported fixtures by their name)
"""`parsgd list`, and choices in a folder of one's own."""

import json
import re

import pytest
from command_line import command  # noqa: F401


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
