"""What a report says about its own table: what is left out, and what not to trust."""

import io
import json
import re

import pytest
from command_line import command  # noqa: F401
from fake_jobs import line, write_job
from rich.console import Console

from parsgd import report, results
from parsgd.errors import UserError
from parsgd.report import terminal
from parsgd.report.answer import ALIKE, SIMULATED, sentences, tiles
from parsgd.report.remarks import set_aside
from parsgd.report.study import study

SHORT, LONG = {"train_seconds": 0.5}, {"train_seconds": 1.5}


def job(folder, samples=500, seconds=0.1, last=0.9, sent=100, **more):
    end = line(9, last, seconds=seconds, samples=samples, bytes=sent)
    write_job(folder, [line(0, 0.1), end], **{"summary": SHORT, **more})


def printed(folder, target=0.8, sort=None):
    console = Console(file=io.StringIO())
    terminal.show(results.load(folder), target, console, sort)
    return console.file.getvalue()


def rows(text):
    return [row for row in text.splitlines() if row.startswith("local_sgd")]


def answer(folder, target=0.8, sort=None):
    (part,) = study(results.load(folder), target, sort).parts
    return " ".join(sentences(part)), tiles(part)


def test_what_is_set_aside_is_said_first_and_what_to_do(command, tmp_path):  # noqa: F811
    for rate in ("0.05", "0.5"):
        for seed in range(5):
            job(tmp_path / f"runs/lr{rate}-{seed}", seed=seed)
    code, out, _ = command("report", "runs")
    first = out.splitlines()[0]
    assert code == 0 and first.startswith("5 jobs set aside: runs/lr")
    pairs = re.findall(r"runs/lr(\S+)-(\d) = runs/lr(\S+)-(\d)", first)
    assert len(pairs) == 3 and "and 2 more. Jobs with the same configuration" in first
    for rate, seed, other, same in pairs:
        assert rate != other and seed == same
    assert "parsgd.Recorder(..., config={...})" in first
    assert out.count("set aside") == 1
    page = (tmp_path / "runs/report/index.html").read_text()
    assert page.index(first) < page.index("<main>") < page.rindex(first)


def test_a_completed_job_is_named_as_the_one_that_counts(tmp_path):
    job(tmp_path / "a")
    write_job(tmp_path / "b", [line(0, 0.1)], status="failed")
    said = set_aside(results.group(results.load(tmp_path)))
    assert said.startswith(f"1 job set aside: {tmp_path / 'b'} = {tmp_path / 'a'}. ")
    assert set_aside(results.group(results.load(tmp_path / "a"))) == ""
    write_job(tmp_path / "c", [line(0, 0.1)], seed=1, status="failed")
    assert report.build(tmp_path).page.read_text().count(said) == 2


@pytest.fixture
def pair(tmp_path):
    """The soonest has 2 workers, the fewest samples 4."""
    job(tmp_path / "2", samples=700, seconds=0.1, workers=2)
    job(tmp_path / "4", samples=600, seconds=0.2, workers=4)
    return tmp_path


def test_short_runs_go_by_samples_unless_a_sort_is_asked_for(pair):
    remark = "uns of less than 1 s say little about time: sorted by samples; sort=sec"
    text = printed(pair)
    assert [row.split()[1] for row in rows(text)] == ["4", "2"]
    assert f"r{remark}" in text and "sort=samples: by samples to the target" in text
    page = report.build(pair, target=0.8)
    assert (
        "Fewest samples to the target first, then those that missed it or diverged. "
        f"R{remark}" in (page.page.read_text())
    )
    assert [row.split(",")[2] for row in page.csv.read_text().splitlines()[1:]] == [
        "4",
        "2",
    ]
    said, cards = answer(pair)
    assert "Fewest samples: local_sgd, workers=4, 600 (1 of 1 run)." in said
    assert "Soonest" not in said and cards[0].title == "Fewest samples to 0.8"
    for sort in ("seconds", "bytes"):
        text = printed(pair, sort=sort)
        assert "say little" not in text and f"sort={sort}: by {sort}" in text
        assert "Soonest: local_sgd, workers=2" in answer(pair, sort=sort)[0]
    assert [row.split()[1] for row in rows(printed(pair, sort="seconds"))] == ["2", "4"]
    assert "say little" not in printed(pair, sort="samples")
    assert "Fewest samples: local_sgd, workers=4" in answer(pair, sort="samples")[0]
    asked = report.build(pair, target=0.8, sort="samples").page.read_text()
    assert "say little" not in asked


def test_the_command_takes_a_sort_as_asked_for(pair, command):  # noqa: F811
    assert "sort=samples: by" in command("report", str(pair), "target=0.8")[1]
    out = command("report", str(pair), "target=0.8", "sort=seconds")[1]
    assert "sort=seconds: by" in out and "say little" not in out


def test_half_of_the_completed_runs_decide_task_by_task(pair):
    job(pair / "8", samples=800, seconds=0.3, workers=8, summary=LONG)
    assert "sort=samples: by" in printed(pair)
    job(pair / "16", samples=900, seconds=0.3, workers=16, summary=LONG)
    job(pair / "32", samples=900, seconds=0.3, workers=32, summary=LONG)
    assert "sort=seconds: by" in printed(pair) and "say little" not in printed(pair)
    job(pair / "1", task={"_target_": "parsgd.tiny"})
    text = printed(pair)
    assert "sort=seconds: by seconds to the target" in text
    assert "runs of less than 1 s (of tiny) say little" in text
    page = report.build(pair, target=0.8).page.read_text()
    assert "digits: Fewest seconds to the target first" in page
    assert "tiny: Fewest samples to the target first" in page


def test_short_runs_of_one_worker_are_compared_in_samples(tmp_path):
    job(tmp_path / "1", samples=1000, workers=1)
    job(tmp_path / "4", samples=500, workers=4)
    said, _ = answer(tmp_path)
    assert "with one worker, local_sgd, workers=1, are 1,000: 2 times as many." in said


def test_an_unknown_sort_is_refused(pair):
    with pytest.raises(UserError, match="sort=time: rows are sorted by seconds"):
        study(results.load(pair), sort="time")


@pytest.mark.parametrize("sort", [None, "seconds"])
def test_ties_are_counted(tmp_path, sort):
    for workers in (2, 4, 8):
        job(tmp_path / str(workers), workers=workers)
    job(tmp_path / "16", samples=900, seconds=0.9, sent=900, last=0.85, workers=16)
    said, cards = answer(tmp_path, sort=sort)
    winner = "Soonest: " if sort else "Fewest samples: "
    assert re.search(
        f"{winner}[^.]*[^(]*\\(1 of 1 run\\), and 2 more with the same", said
    )
    assert "100 B sent per worker, and 2 more with the same." in said
    notes = {card.title.partition(" to ")[0]: card.note for card in cards}
    for title in ("Soonest", "Fewest samples", "Fewest bytes", "Most accurate"):
        assert notes[title].endswith(", and 2 more with the same")
    said, _ = answer(tmp_path, target=1.0)
    assert "with 0.9000, and 2 more with the same." in said
    said, cards = answer(tmp_path / "2")
    assert "with the same" not in said + str(cards)


def test_an_error_that_is_not_0_does_not_read_as_0(tmp_path):
    for seed in range(2):
        job(tmp_path / str(seed), seconds=0.006 + 8e-5 * seed, seed=seed)
    text = printed(tmp_path)
    assert "0.0060 ± 0.00004" in text and "0.9000 ± 0 (2)" in text
    note = "± 0: all runs of the row gave the same value, which is no certainty"
    paths = report.build(tmp_path, target=0.8)
    for told in (text, paths.page.read_text(), paths.markdown.read_text()):
        assert told.count(note) == 1
    job(
        tmp_path / "1", seconds=0.007, last=0.91, samples=600, sent=120, seed=1
    )  # fmt: skip
    assert note not in printed(tmp_path)


def test_equal_values_have_no_error_by_rounding(tmp_path):
    # A third of the sum of three is not 0.003 in binary.
    for seed in range(3):
        job(tmp_path / str(seed), seconds=0.003, seed=seed)
    (row,) = results.table(results.load(tmp_path)).to_dicts()
    assert row["seconds_to_target"] == 0.003 and row["seconds_to_target_sem"] == 0


def test_seconds_of_some_runs_say_of_how_many(tmp_path):
    for seed, last in enumerate([0.9, 0.7]):
        job(tmp_path / f"a{seed}", seconds=0.0061, last=last, seed=seed)
        job(tmp_path / f"b{seed}", seconds=0.0071, seed=seed, workers=2)
    text = printed(tmp_path)
    assert "0.0061 (1 of 2)" in text and "(2 of 2)" not in text
    markdown = report.build(tmp_path, target=0.8).markdown.read_text()
    assert "| 0.0061 (1 of 2) |" in markdown and "| 0.0071 ± 0 |" in markdown


def placed(folder, devices, lanes, **more):
    place = {"placement": {"devices": devices, "lanes": lanes}} if devices else {}
    rate = {"samples_per_second": 100.0}
    job(folder, summary=SHORT | rate | place, **more)


def test_the_placement_is_a_column_where_there_is_room(tmp_path):
    placed(tmp_path / "8", 2, 4, workers=8)
    placed(tmp_path / "1", 1, 1, workers=1)
    placed(tmp_path / "2", None, None, workers=2)
    table = results.table(results.load(tmp_path), 0.8)
    assert dict(table.select("workers", "placement").iter_rows()) == {
        8: "2 devices x 4 lanes",
        1: "1 device x 1 lane",
        2: None,
    }
    paths = report.build(tmp_path, target=0.8)
    assert "| 2 devices x 4 lanes |" in paths.markdown.read_text()
    assert "2 devices x 4 lanes" in paths.csv.read_text()
    assert "2 devices x 4 lanes" in paths.page.read_text()
    assert "2 devices x 4 lanes" in printed(tmp_path)
    long = "a_remark_of_forty_characters_and_some_mo"
    placed(tmp_path / "4", 1, 4, workers=4, note=long)
    assert "lanes" not in printed(tmp_path) and long in printed(tmp_path)


def test_seeds_with_other_placements_are_all_named(tmp_path):
    placed(tmp_path / "0", 2, 2, seed=0)
    placed(tmp_path / "1", 1, 4, seed=1)
    (row,) = results.table(results.load(tmp_path), 0.8).to_dicts()
    assert row["placement"] == "2 devices x 2 lanes; 1 device x 4 lanes"


def test_notes_under_plots_say_only_what_holds(tmp_path):
    alone = "A single worker sends nothing"
    simulated = "Workers that share a device are simulated: this is not the throughput"
    placed(tmp_path / "a/4", 4, 1, workers=4)
    placed(tmp_path / "a/5", 4, 1, workers=4, seed=1)
    paths = report.build(tmp_path / "a")
    page = paths.page.read_text()
    assert alone not in page and simulated not in page
    assert 'id="bytes-0"' in page and 'id="throughput-0"' not in page
    assert "throughput.png" not in {path.name for path in paths.figures}
    placed(tmp_path / "a/1", 1, 1, workers=1)
    page = report.build(tmp_path / "a").page.read_text()
    assert alone in page and 'id="throughput-0"' in page and simulated not in page
    placed(tmp_path / "a/8", 4, 2, workers=8)
    assert simulated in report.build(tmp_path / "a").page.read_text()


def test_workers_that_never_hear_of_each_other_are_named(tmp_path):
    silent = {"summary": SHORT | {"bytes": 0}, "sent": 0}
    job(tmp_path / "alone", workers=4, **silent)
    job(tmp_path / "one", workers=1, **silent)
    job(tmp_path / "sends", workers=2, summary=SHORT | {"bytes": 100})
    report.build(tmp_path)
    said = "local_sgd, workers=4: nothing is sent: each worker trains alone"
    for text in (
        printed(tmp_path),
        (tmp_path / "report/table.md").read_text(),
        (tmp_path / "report/index.html").read_text(),
    ):
        assert text.count(said) == 1


def test_a_mean_over_other_data_is_named(tmp_path):
    for seed, data in enumerate(("1a", "2b", None)):
        job(tmp_path / str(seed), seed=seed, summary=SHORT | {"data_checksum": data})
    assert "a mean over runs on different data" in printed(tmp_path)
    task = {"_target_": "parsgd.synthetic", "seed": 0}
    for seed in range(2):  # data that are drawn anew
        facts = SHORT | {"data_checksum": seed}
        own = task | {"seed": seed}
        job(tmp_path / f"drawn/{seed}", seed=seed, summary=facts, task=own)
    assert "different data" not in printed(tmp_path / "drawn")
    for seed in range(2):
        job(tmp_path / f"same/{seed}", seed=seed, summary=SHORT | {"data_checksum": 1})
    assert "different data" not in printed(tmp_path / "same")


def test_the_table_of_a_report_says_what_its_target_is(tmp_path):
    for workers in (1, 2):
        job(tmp_path / str(workers), workers=workers)
    report.build(tmp_path, target=0.8)
    text = (tmp_path / "report/table.md").read_text()
    assert "- target: accuracy 0.8 (as asked)" in text
    assert "- ±: standard error of the mean of n completed runs" in text
    assert "- sort=samples: by samples to the target" in text


def test_the_most_accurate_is_not_told_apart_from_those_within_its_error(tmp_path):
    for workers, middle in ((1, 0.9), (2, 0.895), (4, 0.6)):
        for seed, away in enumerate((-0.01, 0.01)):
            folder = tmp_path / f"{workers}-{seed}"
            job(folder, workers=workers, seed=seed, last=middle + away)
    _, found = answer(tmp_path, target=0.5)
    (tile,) = [tile for tile in found if tile.title == "Most accurate"]
    assert tile.note == f"n = 2; 1 more {ALIKE}"


def test_the_most_accurate_is_a_row_without_diverged_runs_while_there_are_any(tmp_path):
    for seed, status in enumerate(("completed", "diverged", "diverged")):
        more = {"seed": seed, "last": 0.99, "workers": 8, "status": status}
        job(tmp_path / "bad" / str(seed), **more)
    said, found = answer(tmp_path, target=1.0)
    (tile,) = [tile for tile in found if tile.title == "Most accurate"]
    assert tile.configuration == "local_sgd" and tile.note == "n = 1; 2 of 3 diverged"
    assert "the most accurate is local_sgd with 0.9900; 2 of 3 diverged." in said
    for seed in range(3):
        job(tmp_path / "good" / str(seed), seed=seed, last=0.9, workers=2)
    said, found = answer(tmp_path, target=1.0)
    (tile,) = [tile for tile in found if tile.title == "Most accurate"]
    assert (tile.configuration, tile.note) == ("local_sgd, workers=2", "n = 3")
    assert "the most accurate is local_sgd, workers=2 with 0.9000 ± 0." in said


@pytest.mark.parametrize("away, told", [(0.001, True), (0.0001, False)])
def test_two_runs_of_each_tell_little_apart(tmp_path, away, told):
    """Two standard errors are too few for two runs: t at 95 % is 4.3 and more."""
    for workers, middle in ((1, 0.9), (2, 0.897)):
        for seed, sign in enumerate((-1, 1)):
            folder = tmp_path / f"{workers}-{seed}"
            job(folder, workers=workers, seed=seed, last=middle + sign * away)
    _, found = answer(tmp_path, target=0.5)
    (tile,) = [tile for tile in found if tile.title == "Most accurate"]
    assert (ALIKE in tile.note) == told


def test_lanes_of_one_device_do_not_say_whether_parallel_training_pays(tmp_path):
    for workers in (1, 2):
        place = {"kind": "vmap", "devices": 1, "lanes": workers}
        summary = LONG | {"placement": place}
        job(tmp_path / f"{workers}", workers=workers, seconds=workers, summary=summary)
    said, _ = answer(tmp_path)
    assert SIMULATED in said and "did not pay" not in said


def test_costs_of_a_part_of_the_runs_are_marked_all_alike(tmp_path):
    for seed, last in enumerate((0.9, 0.5)):
        job(tmp_path / str(seed), seed=seed, last=last)
    job(tmp_path / "other", workers=2)
    (row,) = [row for row in rows(printed(tmp_path)) if "1 of 2" in row]
    assert row.count("(1 of 2)") == 3  # seconds, samples and bytes


def test_the_error_of_samples_is_shown(tmp_path):
    for seed, samples in enumerate((400, 600)):
        job(tmp_path / str(seed), seed=seed, samples=samples)
    assert "500 ± 100" in printed(tmp_path)


def accuracies(folder, *found, **more):
    lines = [line(n, accuracy) for n, accuracy in enumerate(found)]
    write_job(folder, lines, summary=SHORT, **more)


def test_a_best_that_is_near_the_untrained_is_told_from_one_that_is_not_above(tmp_path):
    for workers in (1, 2):
        accuracies(tmp_path / str(workers), 0.95, 0.96, 0.965, workers=workers)
    near = "98% of the best, 0.9650, is no more than untrained, 0.9500"
    remedy = "with `parsgd report DIR target=ACCURACY`"
    text = printed(tmp_path, None)
    assert f"target: none ({near})" in text and remedy in text
    said, _ = answer(tmp_path, None)
    assert f"{near}, so there is no target to race to." in said and remedy in said
    assert "no run did better" not in text + said
    for workers in (1, 2):
        accuracies(tmp_path / str(workers), 0.95, 0.94, 0.95, workers=workers)
    text = printed(tmp_path, None)
    assert "no run did better than untrained, 0.9500" in text and remedy not in text


def test_accuracies_without_a_target_can_be_sorted_by(tmp_path):
    for workers, best in ((1, 0.951), (2, 0.965), (4, 0.96)):
        accuracies(tmp_path / str(workers), 0.95, best, workers=workers)
    text = printed(tmp_path, None, "accuracy")
    assert [row.split()[1] for row in rows(text)] == ["2", "4", "1"]
    assert "sort=accuracy: by accuracy" in text and "changes nothing" not in text
    text = printed(tmp_path, None, "bytes")
    assert [row.split()[1] for row in rows(text)] == ["2", "4", "1"]
    assert "sort=bytes changes nothing: there is no target" in text


def test_how_finely_costs_are_known_is_said(tmp_path):
    job(tmp_path / "3/4", workers=4, samples=2000)
    for workers in (1, 2):
        job(tmp_path / str(workers), workers=workers)
    assert "at most 500 to 2,000 samples apart: less" in printed(tmp_path)
    (tmp_path / "3/4/result.json").unlink()
    assert "evaluations lie at most 500 samples apart: less" in printed(tmp_path)
    assert "samples apart" not in printed(tmp_path / "1")


def test_unevenly_spaced_evaluations_are_told_by_their_widest_gap(tmp_path):
    ends = (100, 200, 300, 1000)
    lines = [line(n, 0.9, samples=end) for n, end in enumerate((0, *ends))]
    write_job(tmp_path / "uneven", lines, summary=SHORT)
    job(tmp_path / "other", workers=2, samples=700)
    assert "at most 700 samples apart: less" in printed(tmp_path)


def test_a_row_that_ends_below_the_target_that_it_reached_is_named(tmp_path):
    lines = [line(0, 0.1), line(4, 0.85, samples=250, seconds=0.1, bytes=1)]
    lines += [line(9, 0.7, samples=500, seconds=0.2, bytes=2)]
    write_job(tmp_path / "back", lines, summary=SHORT)
    job(tmp_path / "up", workers=2)
    said = printed(tmp_path)
    assert "ended below it: local_sgd, workers=4 (0.7000)" in said, said


@pytest.mark.parametrize(
    "versions, named",
    [
        (({"jax": "0.10.1"}, {"jax": "0.10.2"}), True),
        (({"jax": "0.10.2"}, {"jax": "0.10.2", "jaxlib": "0.10.2"}), False),
        (({"jax": "1", "commit": None}, {"jax": "1", "commit": "abc"}), False),
    ],
)
def test_rows_of_different_versions_are_named(tmp_path, versions, named):
    for seed, known in enumerate(versions):
        job(tmp_path / str(seed), seed=seed)
        file = tmp_path / str(seed) / "result.json"
        result = json.loads(file.read_text())
        result |= {"versions": known, "machine": {"cpu": "a", "cores": 2}}
        file.write_text(json.dumps(result))
    said = "a mean over runs of different versions or machines"
    assert (said in printed(tmp_path)) == named


@pytest.mark.parametrize("kept", [0, 1])
def test_records_that_were_cut_short_are_told(tmp_path, kept):
    for seed in (0, 1):
        job(tmp_path / f"{seed}", seed=seed)
    path = tmp_path / "1" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    said = f"1 job completed, but metrics.jsonl lacks the end, as in {tmp_path / '1'}:"
    assert said in printed(tmp_path)
    job(tmp_path / "1", seed=1)
    assert "lacks the end" not in printed(tmp_path)
