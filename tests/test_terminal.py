"""The table that a sweep ends with: what fits a terminal, and all of it in a pipe."""

import io
import re

import polars as pl
import pytest
from command_line import command  # noqa: F401
from fake_jobs import fake_job, fake_sweep
from rich.console import Console

from parsgd import results
from parsgd.report import terminal
from parsgd.report.answer import sentences
from parsgd.report.study import study


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    fake_sweep(root, seeds=2, workers=(1, 4))
    return root


def printed(folder, target=None, sort=None, **console):
    console = Console(file=io.StringIO(), **console)
    terminal.show(results.load(folder), target, console, sort)
    return console.file.getvalue()


def test_the_table_fits_and_keeps_what_matters_most(sweep):
    wide = printed(sweep, 0.9, force_terminal=True, width=120)
    for heading in ("Workers", "± se (n)", "Samples/s", "Reached"):
        assert heading in wide
    narrow = printed(sweep, 0.9, force_terminal=True, width=80, no_color=True)
    assert "to target" in narrow and "Samples/s" not in narrow
    assert "…" not in narrow
    for text, width in ((wide, 120), (narrow, 80)):
        plain = re.sub(r"\x1b\[[\d;]*m", "", text)
        assert max(map(len, plain.splitlines())) <= width
        assert "target: accuracy 0.9 (as asked)" in plain
    # The seeds of a configuration are one row with its n.
    assert re.search(r"local_sgd +4 +0\.\d{4} ± 0\.\d{4} \(2\)", plain)


def test_the_order_of_the_rows_is_said_and_its_column_kept(sweep):
    text = printed(sweep, 0.9)
    assert "sort=seconds: by seconds to the target; rows with a miss last" in text
    assert "Rounds" not in text
    narrow = printed(sweep, 0.9, "bytes", force_terminal=True, width=72)
    assert "sort=bytes: by bytes to the target" in narrow
    for heading, shown in (("Bytes", True), ("Reached", False), ("Samples/s", False)):
        assert (heading in narrow) == shown
    assert "Rounds" in printed(sweep, 0.9, "rounds")


def test_one_row_and_no_target_have_no_order_to_tell(tmp_path):
    fake_job(tmp_path / "0")
    assert "sort=" not in printed(tmp_path)
    said = "sort=bytes changes nothing: there is"
    assert f"{said} one configuration" in printed(tmp_path, sort="bytes")
    fake_job(tmp_path / "0", regression=True)
    fake_job(tmp_path / "1", workers=2, regression=True)
    assert "sort=" not in printed(tmp_path)
    assert f"{said} no accuracy to sort by" in printed(tmp_path, sort="bytes")


def test_a_report_is_sorted_as_asked(sweep, command, tmp_path):  # noqa: F811
    code, out, _ = command("report", str(sweep), "sort=bytes", "out=by_bytes")
    assert code == 0 and "sort=bytes: by bytes" in out
    table = pl.read_csv(tmp_path / "by_bytes" / "table.csv")
    reached = table.filter(pl.col("reached") == "2 of 2")["bytes_to_target"]
    assert reached.is_sorted() and len(reached) > 2
    code, _, err = command("report", str(sweep), "sort=cost")
    assert code == 2 and "sort=cost: rows are sorted by seconds, samples" in err


def test_piped_table_is_plain_and_whole(sweep, tmp_path):
    text = printed(sweep, 0.9, width=40)
    rows = [line for line in text.splitlines() if "_sgd" in line or "momentum" in line]
    table = results.table(results.load(sweep), 0.9)
    assert len(rows) == sum(name != "single" for name in table["strategy"])
    assert "\x1b" not in text and "Samples/s" in text
    # What was not measured is said, not left blank: a job that failed.
    assert re.search(r"sync_sgd +3( +-){6}$", text, re.M)
    long = "x" * 150
    for i, note in enumerate([long, "[red]plain"]):
        fake_job(tmp_path / str(i), overrides=[f"note={note}"], note=note)
    text = printed(tmp_path, width=40)
    assert long in text and "[red]plain" in text


def test_target_of_few_runs_is_told(tmp_path):
    for seed in range(5):
        fake_job(tmp_path / str(seed), seed=seed)
    one = "It rests on 5 runs of 1 configuration only: set one of your own with"
    assert one in printed(tmp_path)
    assert one in " ".join(sentences(study(results.load(tmp_path)).parts[0]))
    assert "It rests" not in printed(tmp_path, 0.9)
    fake_job(tmp_path / "5", workers=2)
    assert "It rests" not in printed(tmp_path)
    for seed in range(3):
        fake_job(tmp_path / str(seed), status="failed", reason="x", evaluations=0)
    assert "It rests on 3 runs of 2 configurations only" in printed(tmp_path)


def test_the_number_of_workers_is_always_shown(tmp_path):
    for seed in range(2):
        fake_job(tmp_path / str(seed), seed=seed, workers=4)
    assert re.search(r"Strategy +Workers", printed(tmp_path))
    assert re.search(r"local_sgd +4 ", printed(tmp_path))


def test_a_report_without_any_result_says_so(command, tmp_path):  # noqa: F811
    for i, reason in enumerate(["no memory", "no memory", "no file"]):
        folder = tmp_path / "sweep" / str(i)
        fake_job(folder, status="failed", reason=reason, seed=i, evaluations=0)
    code, out, _ = command("report", "sweep")
    assert code == 0
    assert out.splitlines() == [
        "no job has a result, so there is no table: 3 failed of 3",
        "failed: sweep/0 (and 1 more: 1): no memory",
        "failed: sweep/2: no file",
    ]
    fake_job(tmp_path / "sweep/3", seed=3)
    assert "1 of 4 jobs completed" in command("report", "sweep")[1]
