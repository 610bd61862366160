# ruff: noqa: F811  (pytest finds imported fixtures by their name)
"""`parsgd report` as its user sees it."""

import json

import pytest
from command_line import command  # noqa: F401
from fake_jobs import fake_job


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


def test_a_strategy_that_an_experiment_chose_keeps_its_name_in_the_table(
    command, tmp_path
):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "low.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /strategy: power_sgd\n"
        "hydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      workers: 1,2\n"
    )
    words = ("train", "--config-dir", "mine", "+experiment=low", "samples=320")
    words += ("evaluations=1", "hydra.sweep.dir=sweep")
    code, out, err = command(*words)
    assert code == 0, err
    assert out.count("power_sgd ") >= 2 and "compressed_sgd" not in out
    record = json.loads((tmp_path / "sweep/0/result.json").read_text())
    assert record["choices"]["strategy"] == "power_sgd"
    # The choices are no part of what is compared where a sweep goes on.
    del record["choices"]
    (tmp_path / "sweep/0/result.json").write_text(json.dumps(record))
    code, out, _ = command(*words)
    assert code == 0 and out.count("completed before: skipped") == 2
