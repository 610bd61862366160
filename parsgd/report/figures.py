"""PNG figures of a study, drawn on figures of their own: no pyplot, no global state."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    EngFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    StrMethodFormatter,
)

from parsgd.report.study import (
    MEASURES,
    Entry,
    Part,
    Study,
    accuracy_range,
    axes_of,
    curves_of,
    drawn,
    front,
    narrow,
    scaling_lines,
)
from parsgd.report.style import (
    MPL_DASHES,
    MPL_FILLS,
    MPL_MARKERS,
    workers_of,
)
from parsgd.words import counted

MARK, LOOK = b"parsgd report", 1000  # what tells our files from others, and where
LINES = 16  # more lines in a still picture cannot be followed
WRAP = 60  # characters in a line of the legend


def draw(study: Study, folder: Path) -> list[Path]:
    """Write the PNG figures of each task; return their paths.

    What has no data is not drawn: no convergence figure without an evaluation, no
    throughput without a completed run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("convergence", "throughput", "pareto"):
        for old in (*folder.glob(f"{name}.png"), *folder.glob(f"{name}-*.png")):
            if MARK in old.read_bytes()[:LOOK]:
                old.unlink()  # of an earlier report, perhaps of other tasks
    names, paths = _file_names([part.task for part in study.parts]), []
    for part in study.parts:
        suffix = f"-{names[part.task]}" if len(study.parts) > 1 else ""
        made = {
            "convergence": convergence(part),
            "throughput": throughput(part),
            "pareto": pareto(part),
        }
        for name, figure in made.items():
            if figure is not None:
                paths.append(folder / f"{name}{suffix}.png")
                about = {"Software": MARK.decode()}
                figure.savefig(paths[-1], dpi=150, bbox_inches="tight", metadata=about)
    return paths


def convergence(part: Part) -> Figure | None:
    """Accuracy (or loss) against samples, seconds, rounds and bytes."""
    entries = drawn(part.entries, LINES)
    if not entries:
        return None
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(2, 2, sharey=True).flat
    for panel, axis in zip(panels, axes_of(entries), strict=True):
        for entry in entries:
            _line(panel, entry, axis.key, axis.log)
        if part.target.value is not None:
            panel.axhline(
                part.target.value, color="0.5", lw=1, ls=(0, (4, 4)), zorder=0
            )
        _finish(panel, axis.title, MEASURES[part.measure])
        if axis.log and panel.dataLim.x1 > 0:
            panel.set_xscale("log")
            if narrow(entries, axis.key):
                panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                panel.xaxis.set_minor_formatter(NullFormatter())
        elif axis.log:
            panel.set_xticks([])
            none = "nothing was sent" if axis.key == "bytes" else "nothing to draw"
            panel.text(0.5, 0.5, none, transform=panel.transAxes)
        else:
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        if axis.key == "seconds":  # "5m" would read as minutes
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        else:
            unit = "B" if axis.key == "bytes" else ""
            panel.xaxis.set_major_formatter(EngFormatter(unit, sep=""))
        if part.measure == "test_accuracy":
            panel.set_ylim(accuracy_range(entries, part.target.value))
    total = len(curves_of(part.entries))
    shown = (
        f"; best {len(entries)} of {total} configurations"
        if len(entries) < total
        else ""
    )
    goal = f"; dashed: target {part.target.value:g}" if part.target.value else ""
    text = f"{part.task}: mean over seeds, band ± 1 sem{goal}{shown}"
    figure.suptitle(text, x=0.01, ha="left", fontsize=11, parse_math=False)
    _legend(figure, [*_names(entries), *_workers(entries), *_details(entries)])
    return figure


def throughput(part: Part) -> Figure | None:
    """Samples per second against workers."""
    lines = scaling_lines(part.entries)
    if not lines:
        return None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    handles = []
    for name, line in sorted(lines.items()):
        look = line[0].look
        runs = [
            (workers_of(e.group), job.summary.get("samples_per_second"))
            for e in line
            for job in e.group.with_status("completed")
            if e.row["n"] > 1
        ]
        if runs:
            axes.plot(*zip(*runs, strict=True), ls="", marker=".", color=look.color)
        handles += axes.plot(
            [workers_of(e.group) for e in line],
            [e.row["samples_per_second"] for e in line],
            color=look.color,
            marker="o",
            fillstyle=MPL_FILLS[look.variant],
            label=name,
        )
    counts = sorted({workers_of(e.group) for line in lines.values() for e in line})
    if counts[0] > 0:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(bottom=0)
    _finish(axes, "workers", "samples/s")
    _title(axes, f"{part.task}: training throughput; dots: single runs")
    _legend(figure, handles)
    return figure


def pareto(part: Part) -> Figure | None:
    """Training time against final accuracy, the non-dominated points joined."""
    entries = [
        e
        for e in part.entries
        if e.row["train_seconds"] is not None and e.row["accuracy"] is not None
    ]
    if not entries:
        return None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    points = [(e.row["train_seconds"], e.row["accuracy"]) for e in entries]
    best = [points[i] for i in front(points)]
    axes.plot(*zip(*best, strict=True), color="0.6", lw=1.5, zorder=1)
    for entry, (x, y) in zip(entries, points, strict=True):
        axes.errorbar(
            x,
            y,
            yerr=entry.row["accuracy_sem"],
            color=entry.look.color,
            marker=MPL_MARKERS[entry.look.workers],
            fillstyle=MPL_FILLS[entry.look.variant],
            ms=7,
            elinewidth=1,
        )
    _finish(axes, "training time of the run (s)", "final test accuracy")
    text = f"{part.task}: joined where no other is both faster and better"
    _title(axes, text)
    _legend(figure, [*_names(entries), *_workers(entries), *_details(entries)])
    return figure


def _line(axes: Axes, entry: Entry, key: str, log: bool) -> None:
    curve, look = entry.curve, entry.look
    if curve is None:
        return
    keep = [i for i, x in enumerate(curve.x[key]) if x > 0 or not log]
    x, y = [curve.x[key][i] for i in keep], [curve.y[i] for i in keep]
    axes.plot(
        x,
        y,
        color=look.color,
        ls=MPL_DASHES[look.workers],
        marker=MPL_MARKERS[look.workers],
        fillstyle=MPL_FILLS[look.variant],
        ms=4,
        lw=1.5,
        markevery=max(1, len(x) // 10),
    )
    if curve.sem is not None:
        sem = [curve.sem[i] for i in keep]
        low = [m - s for m, s in zip(y, sem, strict=True)]
        high = [m + s for m, s in zip(y, sem, strict=True)]
        axes.fill_between(x, low, high, color=look.color, alpha=0.18, lw=0)


def _finish(axes: Axes, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _names(entries: Sequence[Entry]) -> list[Line2D]:
    """What colours stand for; with a fill where two names have the same."""
    looks = {e.look.name: e.look for e in entries}
    times = Counter(look.color for look in looks.values())
    return [
        _handle(name, color=look.color, lw=3)
        if times[look.color] == 1
        else _handle(
            name, color=look.color, marker="o", fillstyle=MPL_FILLS[look.variant]
        )
        for name, look in looks.items()
    ]


def _workers(entries: Sequence[Entry]) -> list[Line2D]:
    """What dashes and symbols stand for."""
    counts = {workers_of(e.group): e.look.workers for e in entries}
    return [
        _handle(counted(n, "worker"), ls=MPL_DASHES[i], marker=MPL_MARKERS[i], ms=4)
        for n, i in sorted(counts.items())
    ]


def _details(entries: Sequence[Entry]) -> list[Line2D]:
    """What fills stand for, if there are several."""
    fills = {e.look.detail: e.look.variant for e in entries}
    if len(fills) < 2:
        return []
    return [
        _handle(text or "otherwise", ls="", marker="o", fillstyle=MPL_FILLS[i])
        for text, i in fills.items()
    ]


def _handle(label: str, **look: Any) -> Line2D:
    handle = Line2D([], [], color="0.3", label=label)
    handle.set(**look)
    return handle


def _legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Below the plots, in as many columns as fit; the figure grows by its height."""
    labels = [textwrap.fill(str(handle.get_label()), WRAP) for handle in handles]
    longest = max(len(line) for label in labels for line in label.splitlines())
    width, height = figure.get_size_inches()
    columns = max(1, min(5, int(width * 12 / (longest + 6)), len(labels)))
    lines = sum(label.count("\n") + 1 for label in labels)
    figure.set_size_inches(width, height + 0.2 * (1 + -(-lines // columns)))
    legend = figure.legend(
        handles=handles,
        labels=labels,
        loc="outside lower left",
        ncols=columns,
        frameon=False,
        fontsize=9,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a $ in a name is a $


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, parse_math=False)


def _file_names(tasks: Sequence[str]) -> dict[str, str]:
    """A name for the files of each task; numbered where two would be the same."""
    plain = ["".join(c if c.isalnum() or c in "-_" else "_" for c in t) for t in tasks]
    return {
        task: name if plain.count(name) == 1 else f"{name}-{i}"
        for i, (task, name) in enumerate(zip(tasks, plain, strict=True))
    }
