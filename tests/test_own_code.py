"""Code of one's own that a config calls: another one is another run."""

import sys

from command_line import command  # noqa: F401
from processes import finished, parsgd

from parsgd.config.own_code import code_checksum
from parsgd.config.targets import ALLOWED

MINE = (
    "import optax, parsgd\n"
    "def mine(optimizer):\n"
    "    return parsgd.local_sgd(optax.chain(optimizer, optax.scale({factor})))\n"
)
WORDS = ("strategy._target_=mine_now.mine", "epochs=1", "evaluations=1")


def run(folder, *words):
    code, out, err = finished(parsgd("train", *words, cwd=folder))
    return code, out + err


def test_a_sweep_repeats_what_was_run_by_other_code_of_ones_own(tmp_path):
    (tmp_path / "mine_now.py").write_text(MINE.format(factor=1.0))
    sweep = ("-m", *WORDS, "seed=0,1", "hydra.sweep.dir=sweep")
    assert "2 of 2 jobs completed" in run(tmp_path, *sweep)[1]
    assert run(tmp_path, *sweep)[1].count("completed before") == 2
    assert run(tmp_path, *WORDS, "hydra.run.dir=one")[0] == 0
    (tmp_path / "mine_now.py").write_text(MINE.format(factor=0.5))
    said = run(tmp_path, *sweep)[1]
    assert "completed before" not in said
    assert said.count("differs in your own code: it is run again") == 2
    assert "differs in your own code" in run(tmp_path, *WORDS, "hydra.run.dir=one")[1]


def test_a_run_does_not_go_on_by_other_code_of_ones_own(tmp_path):
    (tmp_path / "mine_now.py").write_text(MINE.format(factor=1.0))
    words = (*WORDS, "workers=2", "checkpoint.rounds=1000", "hydra.run.dir=run")
    assert run(tmp_path, *words)[0] == 0
    (tmp_path / "mine_now.py").write_text(MINE.format(factor=0.5))
    code, said = run(tmp_path, *words, "epochs=2")
    assert code == 2 and "your own code, by a checksum: " in said, said
    code, said = run(tmp_path, *words, "epochs=2", "checkpoint.force=true")
    assert code == 0 and "(forced)" in said, said


def test_a_run_that_was_forced_is_not_forced_again(tmp_path):
    (tmp_path / "mine_now.py").write_text(MINE.format(factor=1.0))
    words = (*WORDS, "checkpoint.rounds=1000", "checkpoint.force=true")
    assert run(tmp_path, *words, "hydra.run.dir=run")[0] == 0
    (tmp_path / "mine_now.py").write_text(MINE.format(factor=0.5))
    code, said = run(tmp_path, "resume=run", WORDS[0], "epochs=2")
    assert code == 2 and "your own code, by a checksum: " in said, said


def test_code_that_cannot_be_imported_loses_no_result(tmp_path):
    (tmp_path / "mine_now.py").write_text(MINE.format(factor=1.0))
    sweep = ("-m", *WORDS, "seed=0,1", "hydra.sweep.dir=sweep")
    assert run(tmp_path, *sweep)[0] == 0
    before = [file.read_bytes() for file in sorted(tmp_path.rglob("result.json"))]
    (tmp_path / "mine_now.py").write_text("1 +\n")
    code, said = run(tmp_path, *sweep)
    assert code == 1 and "Traceback" not in said and "SyntaxError" in said, said
    assert said.count("the files of the run before are kept, as *.kept") == 2, said
    kept = [file.read_bytes() for file in sorted(tmp_path.rglob("result.json.kept"))]
    assert len(before) == 2 and kept == before
    assert len([*tmp_path.rglob("metrics.jsonl.kept")]) == 2


def test_code_that_the_user_has_not_named_is_not_looked_up(tmp_path, monkeypatch):
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "unpacked/__init__.py").write_text("raise SystemExit('it was run')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {"strategy": {"_target_": "unpacked.inner.made"}}
    assert code_checksum(config, ALLOWED) is None
    assert "unpacked" not in sys.modules


def test_only_files_of_ones_own_count(tmp_path, monkeypatch):
    (tmp_path / "broken_one").mkdir()
    (tmp_path / "broken_one/__init__.py").write_text("1 +\n")
    (tmp_path / "whole_one.py").write_text("made = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    named = (*ALLOWED, "broken_one", "whole_one", "functools", "rich")

    def checksum(*targets):
        return code_checksum({"parts": [{"_target_": t} for t in targets]}, named)

    assert checksum("optax.sgd", "functools.partial", "rich.print") is None
    assert checksum("broken_one.inner.made") is not None  # what fails is told later
    assert checksum("whole_one.made", "optax.sgd") == checksum("whole_one.made")
    assert checksum("whole_one.made") is not None
