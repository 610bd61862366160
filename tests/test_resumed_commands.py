"""What a run's folder holds is repeated where it may be, and cannot choose code."""

import json

import pytest
from command_line import command  # noqa: F401
from test_checkpoint_command import run  # noqa: F401
from test_checkpoint_folders import pytestmark  # noqa: F401

from parsgd.checkpoint import keeper
from parsgd.cli.resume import resumed


def rewrite(run, change):  # noqa: F811
    """Somebody changes what is stored with the newest checkpoint."""
    file = max(run.glob("checkpoints/*/meta/metadata"), key=lambda f: int(f.parts[-3]))
    meta = json.loads(file.read_text())
    change(meta)
    file.write_text(json.dumps(meta))


def spawned(tmp_path):
    target = "_target_: pathlib.Path.touch, self: {_target_: pathlib.Path, _args_: ["
    return f"{{{target}{tmp_path / 'made'}]}}}}"


@pytest.mark.parametrize("words", [["export", "run"], ["train", "resume=run"]])
@pytest.mark.parametrize("escape", ["", "\\"])
def test_a_checkpoint_cannot_choose_code_by_references(
    run,  # noqa: F811
    command,  # noqa: F811
    tmp_path,
    words,
    escape,
):
    evil = f"{escape}${{oc.create:{spawned(tmp_path)}}}"

    def change(meta):
        if words[0] == "export":
            meta["config"]["task"]["model"]["features"] = [evil]
        else:
            meta["overrides"].append(f"task.model.features=['{evil}']")

    rewrite(run, change)
    code, out, err = command(*words)
    assert not (tmp_path / "made").exists()
    said = "is not called" if not escape else "still refers to another one"
    assert code in (1, 2) and said in out + err, out


def test_a_checkpoint_cannot_choose_files_from_elsewhere(run, command, tmp_path):  # noqa: F811
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "e.yaml").write_text(
        "# @package _global_\nhydra: {callbacks: {evil: " + spawned(tmp_path) + "}}\n"
    )
    up = "/".join([".."] * 12)
    for override in (
        f"+experiment={up}{tmp_path}/evil/e",
        f"+experiment=[demo,{tmp_path}/evil/e]",
        '+experiment=${oc.select:no,".."}/${oc.select:no,".."}/evil/e',
    ):
        rewrite(run, lambda meta, new=override: meta.update(overrides=[new]))
        code, out, err = command("train", "resume=run")
        assert code == 2 and "a file outside of the folders" in err, out
    for package in ("hydra.x", "_global_.hydra.x"):
        option = f"+network@{package}=1gbit"
        rewrite(run, lambda meta, new=option: meta.update(overrides=[new]))
        assert option not in resumed(["resume=run"])
    assert not (tmp_path / "made").exists()


def test_options_of_a_run_that_ended_before_it_saved_are_repeated(
    run,  # noqa: F811
    command,  # noqa: F811
    monkeypatch,
):
    before = resumed(["resume=run"])
    words = ("resume=run", "rounds=40", "optimizer.learning_rate=0.05")
    with monkeypatch.context() as within:
        within.setattr(keeper._Saving, "save", lambda *args: 1 / 0)
        code, _, _ = command("train", *words)
    assert code == 1
    (run / "result.json").unlink()  # as of one that was killed
    after = resumed(["resume=run"])
    assert after != before and "rounds=40" in after and "rounds=20" not in after
    code, out, _ = command("train", "resume=run")
    assert code == 0 and "resumes with optimizer.learning_rate=0.05, was 0.02" in out


def test_a_primary_config_of_ones_own_is_named_again(command, tmp_path):  # noqa: F811
    (tmp_path / "conf").mkdir()
    text = "defaults: [config, _self_]\nworkers: 2\noptimizer: {learning_rate: 0.03}\n"
    (tmp_path / "conf" / "mine.yaml").write_text(text)
    words = ("--config-dir", "conf", "--config-name", "mine", "checkpoint.rounds=10")
    code, out, _ = command("train", *words, "rounds=20", "hydra.run.dir=run")
    assert code == 0, out
    code, out, _ = command("train", "--config-dir", "conf", "resume=run", "rounds=30")
    assert code == 0 and "resumes with rounds=30" in out
    assert "learning_rate" not in out.partition("goes on")[0].replace("rate 0.03", "")
    rewrite(tmp_path / "run", lambda m: m["overrides"].append("--config-name=../../x"))
    assert "--config-name=../../x" not in resumed(["resume=run"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resume=run/checkpoints"], "give the run's own, resume=/"),
        (["resume=run", "hydra.run.dir=other"], "leave resume= out for a new run"),
    ],
)
def test_what_cannot_go_on_is_told_how(run, command, words, said):  # noqa: F811
    code, out, err = command("train", *words)
    assert code == 2 and said in out + err
