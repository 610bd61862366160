"""What tells configurations apart in the figures, and that the legend leaves room."""

import re
from pathlib import Path

import pytest
from fake_jobs import fake_job

from parsgd import results
from parsgd.report import figures
from parsgd.report.page import render
from parsgd.report.plots import plots
from parsgd.report.study import study
from parsgd.report.style import COLORS, short


def part(folder: Path):
    (found,) = study(results.load(folder)).parts
    return found


def labels(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def looks(figure):
    """Of each line in the first plot, all that a reader can tell it by."""
    lines = figure.axes[0].get_lines()
    kept = [line for line in lines if len(line.get_xdata()) > 2]
    return [
        (x.get_color(), x.get_linestyle(), x.get_marker(), x.get_fillstyle())
        for x in kept
    ]


@pytest.mark.parametrize("count", [2, 3, 4, 9, len(COLORS) + 2])
def test_configurations_of_one_strategy_are_told_apart(tmp_path, count):
    for i in range(count):
        fake_job(tmp_path / str(i), local_steps=i + 1, overrides=[f"local_steps={i}"])
    figure = figures.convergence(part(tmp_path))
    assert len(looks(figure)) == len({*looks(figure)}) == count
    for i in range(count):
        assert any(f"H={i + 1}" in text.split(", ") for text in labels(figure))
    _, page = plots(part(tmp_path))["samples"]
    html = render(study(results.load(tmp_path)))
    drawn = {(t.line.color, t.line.dash, t.marker.symbol) for t in page.data if t.name}
    assert len(drawn) == count
    # The filters show the colours of strategies; where there are more, a key does.
    named = re.findall(r'class="swatch" style="background:(#\w+)"></span>([^<]+)', html)
    assert len(named) == (count if count > 3 else 0)
    assert {color for color, _ in named} <= {*COLORS}


def test_throughput_names_each_line(tmp_path):
    for i in range(8):
        steps, workers = 2 ** (i % 4), 1 + i // 4
        fake_job(tmp_path / str(i), local_steps=steps, workers=workers)
    figure = figures.throughput(part(tmp_path))
    names = [f"local_sgd, H={2**i}" for i in range(4)]
    assert sorted(labels(figure)) == sorted(names)


def test_long_labels_leave_the_plots_their_room(tmp_path):
    def height(name, folder):
        figure = getattr(figures, name)(part(folder))
        figure.draw_without_rendering()
        boxes = [axes.get_window_extent() for axes in figure.axes]
        assert all(box.width > 0.35 * figure.bbox.width for box in boxes)
        (legend,) = figure.legends
        assert legend.get_window_extent().x1 <= figure.bbox.width
        return boxes[0].height

    for i in range(3):
        fake_job(tmp_path / "short" / str(i), local_steps=i + 1, workers=i + 1)
        long = {"note": "a long remark, " * 5 + str(i)}
        asked = [f"{key}={value}" for key, value in long.items()]
        fake_job(tmp_path / "long" / str(i), workers=i + 1, overrides=asked, **long)
    for name in ("convergence", "throughput", "pareto"):
        if name != "throughput":
            usual = height(name, tmp_path / "short")
            assert height(name, tmp_path / "long") > 0.9 * usual
        else:
            height(name, tmp_path / "long")


def test_keys_are_shortened_where_that_is_clear():
    one = ["strategy.reducer.compressor.levels=4", "workers=2"]
    assert short([one]) == ["levels=4, workers=2"]
    called = ["strategy.reducer.compressor._target_=parsgd.compressors.qsgd"]
    assert short([called]) == ["compressor=parsgd.compressors.qsgd"]
    two = ["task.seed=1", "strategy.seed=2", "strategy.eta=0.5"]
    assert short([two]) == ["task.seed=1, strategy.seed=2, eta=0.5"]
