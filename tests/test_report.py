"""What a report says and draws, without a browser."""

import importlib
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from parsgd import report, results
from parsgd.errors import UserError
from parsgd.report.answer import sentences, tiles
from parsgd.report.figures import convergence
from parsgd.report.plots import plots
from parsgd.report.study import (
    accuracy_range,
    axes_of,
    curve,
    drawn,
    front,
    scaling_lines,
    study,
)

sys.path.insert(0, str(Path(__file__).parent))
fake_jobs = importlib.import_module("fake_jobs")
fake_job, fake_sweep = fake_jobs.fake_job, fake_jobs.fake_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    fake_sweep(root, seeds=2, workers=(1, 4))
    return root


def subject(folder, target=None):
    return study(results.load(folder), target)


def test_build_writes_everything(sweep, tmp_path):
    paths = report.build([sweep], out=tmp_path / "out", target=0.9)
    assert [p.name for p in paths.figures] == [
        "convergence.png",
        "throughput.png",
        "pareto.png",
    ]
    for path in [paths.csv, paths.parquet, paths.markdown, paths.page, *paths.figures]:
        assert path.stat().st_size > 100
    assert pl.read_parquet(paths.parquet)["target"].unique().to_list() == [0.9]
    assert paths.figures[0].read_bytes().startswith(b"\x89PNG")


def test_build_goes_into_the_first_folder_and_can_be_repeated(tmp_path):
    fake_job(tmp_path / "0")
    first = report.build(tmp_path)
    assert first.folder == tmp_path / "report"
    stale = first.folder / "figures" / "convergence-of-older-task.png"
    stale.write_bytes(first.figures[0].read_bytes())
    again = report.build(tmp_path)
    assert again == first and not stale.exists()
    assert results.load(tmp_path)[0].folder == tmp_path / "0"


def test_H2_unwritable_report_is_named(sweep, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/out"):
        report.build(sweep, out=tmp_path / "file" / "out")


def test_page_is_self_contained(sweep, tmp_path):
    page = report.build(sweep, out=tmp_path).page
    text = page.read_text()
    assert page.stat().st_size < 6.2e6
    assert text.count("plotly.js v") == 1
    # no element fetches: every src and stylesheet is absent or data
    assert not re.search(r"<(script|img|iframe)[^>]*\ssrc=[\"']?(?!data:)", text)
    assert not re.search(r"<link[^>]*href=[\"'](?!data:)", text)
    assert "use placement=vmap" in text and "&lt;3&gt; devices" in text
    for name, column in results.COLUMNS.items():
        assert f"<code>{name}</code>" in text and column.title in text
    assert results.versions()["jax"] in text and results.machine()["cpu"] in text


def test_label_cannot_break_the_page(tmp_path):
    evil = "</script><b>x"
    for i, note in enumerate([evil, "plain"]):
        fake_job(tmp_path / str(i), seed=i, overrides=[f"note={note}"], note=note)
    text = report.build(tmp_path).page.read_text()
    assert evil not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert evil in json.loads(data[1])["facets"]["note"]
    assert "<b>x" not in text.replace(data[0], "")


def test_no_pyplot_state(sweep, tmp_path):
    code = (
        "import sys; from parsgd import report;"
        f"report.build({str(sweep)!r}, out={str(tmp_path)!r});"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    assert run(code) == "False"


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_import_of_report_draws_in_nothing_heavy():
    code = (
        "import sys, parsgd; before = set(sys.modules); import parsgd.report;"
        "heavy = {'jax', 'plotly', 'matplotlib', 'itables'};"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    assert run(code) == "[]"


def test_answer_names_the_winners(sweep):
    (part,) = subject(sweep, 0.9).parts
    text = " ".join(sentences(part))
    rows = [e.row for e in part.entries if e.row["seconds_to_target"] is not None]
    soonest = min(rows, key=lambda r: r["seconds_to_target"])
    sending = [r for r in rows if r["bytes_to_target"]]
    fewest = min(sending, key=lambda r: r["bytes_to_target"])
    assert f"Soonest: {soonest['configuration']}, " in text
    assert f"Fewest bytes: {fewest['configuration']}, " in text
    assert "2 of 2 runs" in text and "as asked" in text
    assert tiles(part)[0].configuration == soonest["configuration"]


def test_answer_for_an_unreached_target_and_single_runs(tmp_path):
    fake_job(tmp_path / "0")
    (part,) = subject(tmp_path, 1.0).parts
    assert "No configuration reached it in every run" in " ".join(sentences(part))
    (part,) = subject(tmp_path).parts
    assert "one run of each" in " ".join(sentences(part))


def test_a_winner_of_one_run_is_told_among_those_of_several(tmp_path):
    fake_job(tmp_path / "w8", workers=8)
    for seed in (0, 1):
        fake_job(tmp_path / f"w2-{seed}", workers=2, seed=seed)
    (part,) = subject(tmp_path, 0.5).parts
    assert "The first has one run only" in " ".join(sentences(part))


def test_without_accuracy_the_lowest_loss_comes_first(tmp_path):
    for workers, speed in ((1, 0.1), (2, 0.5), (8, 2.0)):
        options = {"workers": workers, "speed": speed, "regression": True}
        fake_job(tmp_path / str(workers), **options)
    (part,) = subject(tmp_path).parts
    losses = [entry.row["test_loss"] for entry in part.entries]
    assert losses == sorted(losses) and len({*losses}) == 3


def test_axis_holds_the_best_and_the_target(tmp_path):
    for target in (0.05, 0.9, 1.0):
        fake_job(tmp_path / "0", top=0.7)
        (part,) = subject(tmp_path, target).parts
        low, top = accuracy_range(part.entries, target)
        best = max(part.entries[0].curve.y)
        assert 0 <= low < best < top and target < top and top - low > 0.05


def test_diverged_configuration_never_wins(tmp_path):
    fake_job(tmp_path / "0", workers=1)
    fake_job(tmp_path / "1", workers=8, status="diverged", reason="loss")
    (part,) = subject(tmp_path, 0.9).parts
    assert part.entries[0].row["workers"] == 1
    assert "Soonest: local_sgd, workers=1" in " ".join(sentences(part))


def test_curve_is_the_mean_at_shared_rounds(tmp_path):
    def write(seed, accuracies):
        folder = tmp_path / str(seed)
        results.begin(folder, fake_jobs.fake_config(seed=seed))
        lines = [
            {"round": r, "samples": r * 10, "test_accuracy": a, "seconds": r + seed}
            for r, a in enumerate(accuracies)
        ]
        for line in lines:
            results.append(folder, line)
        config = fake_jobs.fake_config(seed=seed)
        ended = {"status": "completed", "config": config, "final": lines[-1]}
        results.finish(folder, ended)

    write(0, [0.1, 0.5, 0.9])
    write(1, [0.3, 0.7])
    (group,) = results.group(results.load(tmp_path))
    mean = curve(group, "test_accuracy")
    assert mean.y == pytest.approx([0.2, 0.6])
    assert mean.sem == pytest.approx([0.1, 0.1])
    assert mean.x["seconds"] == [0.5, 1.5] and mean.x["samples"] == [0, 10]


def test_front_has_no_dominated_point():
    points = [(3.0, 0.9), (1.0, 0.5), (2.0, 0.5), (2.5, 0.95), (1.0, 0.6)]
    assert [points[i] for i in front(points)] == [(1.0, 0.6), (2.5, 0.95)]


def test_one_colour_per_strategy_everywhere(sweep):
    (part,) = subject(sweep).parts
    colors = {}
    for entry in part.entries:
        colors.setdefault(entry.group.strategy, set()).add(entry.look.color)
    assert all(len(one) == 1 for one in colors.values())
    assert len(set.union(*colors.values())) == len(colors)
    for _, figure in plots(part).values():
        for trace in figure.data:
            if trace.name:
                strategy = trace.name.partition(",")[0]
                assert (trace.marker.color or trace.line.color) in colors[strategy]


@pytest.mark.parametrize("case", ["one", "failed", "unevaluated", "regression", "nan"])
def test_edge_cases_build(tmp_path, case):
    options = {
        "one": {},
        "failed": {"status": "failed", "reason": "no memory", "evaluations": 0},
        "unevaluated": {"evaluations": 0},
        "regression": {"regression": True},
        "nan": {"top": float("nan")},
    }[case]
    for i in range(1 if case == "one" else 2):
        fake_job(tmp_path / str(i), workers=i + 1, **options)
    paths = report.build(tmp_path)
    text = paths.page.read_text()
    names = {path.name for path in paths.figures}
    if case == "failed":
        assert not names and "No run completed" in text and "no memory" in text
    if case == "unevaluated":
        assert "convergence.png" not in names
    if case in ("regression", "nan"):
        assert "Test loss against samples" in text and "pareto.png" not in names
        assert "no target to race to" in text
    if case == "one":
        assert "convergence.png" in names


def test_tasks_are_kept_apart(tmp_path):
    fake_job(tmp_path / "0", top=0.98)
    other = {"_target_": "parsgd.fashion_mnist"}
    fake_job(tmp_path / "1", top=0.6, task=other, seed=1)
    paths = report.build(tmp_path)
    assert "convergence-digits.png" in {path.name for path in paths.figures}
    table = pl.read_csv(paths.csv)
    goals = dict(zip(table["task"], table["target"], strict=True))
    assert goals["fashion_mnist"] < 0.65 < goals["digits"]
    assert "<h3>fashion_mnist</h3>" in paths.page.read_text()


def test_curves_that_end_far_apart_share_a_logarithmic_axis(tmp_path):
    for workers, samples in ((2, 900), (4, 6300)):
        last = {"seconds": 1.0, "samples": samples, "bytes": 5, "test_accuracy": 0.9}
        half = last | {"round": 4, "seconds": 0.5, "samples": samples // 2}
        start = {"round": 0, "seconds": 0, "samples": 0, "test_accuracy": 0.1}
        lines = [start, half, last | {"round": 9}]
        fake_jobs.write_job(tmp_path / str(workers), lines, workers=workers)
    (part,) = subject(tmp_path).parts
    kinds = [a.key for a in axes_of(part.entries) if a.log]
    assert kinds == ["samples", "seconds", "bytes"]
    drawn = {name: made.layout.xaxis for name, (_, made) in plots(part).items()}
    assert drawn["samples"].type == "log" and drawn["round"].type is None
    # 100m would read as minutes.
    assert drawn["seconds"].tickformat == "~g"
    (alone,) = subject(tmp_path / "2").parts
    assert [a.key for a in axes_of(alone.entries) if a.log] == ["seconds", "bytes"]


def test_known_strategies_have_the_same_colour_in_every_report(tmp_path):
    def colors(folder, *strategies):
        for name in strategies:
            fake_job(folder / name, strategy=name)
        (part,) = subject(folder).parts
        return {e.group.strategy: e.look.color for e in part.entries}

    few = colors(tmp_path / "few", "power_sgd", "sync_sgd")
    many = colors(tmp_path / "many", "aaa", "local_sgd", "power_sgd", "sync_sgd", "zzz")
    assert few.items() <= many.items()
    assert len({*many.values()}) == len(many)


def test_a_run_that_has_not_trained_yet_has_no_line_over_seconds(tmp_path):
    start = {"round": 0, "seconds": 0, "samples": 0, "test_accuracy": 0.1}
    fake_jobs.write_job(tmp_path, [start], workers=2)
    (part,) = subject(tmp_path).parts
    figure = convergence(part)
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert said == ["nothing to draw", "nothing was sent"]


def test_names_with_signs_of_tex_are_drawn_as_they_are(tmp_path):
    for task in ("a b", "a_b"):
        call = {"_target_": f"parsgd.{task}"}
        fake_job(tmp_path / task, strategy="$\\frac$", task=call)
    figures = [path.name for path in report.build(tmp_path).figures]
    assert len(figures) == len({*figures}) and "convergence-a_b-0.png" in figures


def test_the_page_says_how_its_table_is_sorted(sweep, tmp_path):
    page = report.build(sweep, out=tmp_path, sort="bytes").page.read_text()
    assert "Fewest bytes to the target first, then those that missed it or " in page
    page = report.build(sweep, out=tmp_path, sort="accuracy").page.read_text()
    assert "The most accurate first." in page


def test_two_machines_are_told(tmp_path, monkeypatch):
    fake_job(tmp_path / "0", workers=1)
    monkeypatch.setattr(
        results, "machine", lambda devices: {"cpu": "another", "devices": ["cpu"]}
    )
    fake_job(tmp_path / "1", workers=2)
    assert "ran on different machines" in report.build(tmp_path).page.read_text()


def test_lines_are_limited_and_that_is_said(tmp_path):
    for i in range(60):
        fake_job(tmp_path / str(i), workers=1 + i % 3, samples=20_000 + i)
    (part,) = subject(tmp_path).parts
    few = drawn(part.entries, 5)
    assert len(few) == 5 and {e.group.setting("workers") for e in few} == {1, 2, 3}
    assert "36 of 60 configurations have a line" in (
        report.build(tmp_path).page.read_text()
    )


def test_200_jobs_stay_small(tmp_path):
    for i in range(200):
        fake_job(tmp_path / str(i), workers=2 ** (i % 5), seed=i % 2, samples=9000 + i)
    assert report.build(tmp_path).page.stat().st_size < 6.2e6


def test_throughput_lines_have_one_point_per_worker_count(tmp_path):
    for i, (steps, workers) in enumerate([(1, 1), (1, 2), (4, 1), (4, 2)]):
        fake_job(tmp_path / str(i), workers=workers, local_steps=steps)
    (part,) = subject(tmp_path).parts
    lines = scaling_lines(part.entries)
    assert [len(line) for line in lines.values()] == [2, 2]


def test_the_page_says_what_symbols_and_fills_stand_for(tmp_path):
    for number, (workers, rule) in enumerate(
        itertools.product((1, 4), ("none", "sqrt"))
    ):
        scaling = {"_target_": "parsgd.scaling.Scaling", "rule": rule}
        words = [f"workers={workers}", f"scaling={rule}"]
        folder = tmp_path / str(number)
        fake_job(folder, workers=workers, scaling=scaling, overrides=words)
    page = report.build([tmp_path], tmp_path / "out").page.read_text()
    assert "Workers: ● 1, ■ 4. Filled: scaling=none; open: scaling=sqrt." in page
