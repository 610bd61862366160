"""Interactive plots of a study, as plotly figures.

Colours of axes and text are left to the page, which knows light from dark. Every trace
names in ``meta`` the configuration that it draws. Under that name the page finds the
configuration's ``facets``, by which its filters show and hide the trace, and what a
hover tells (``about``): once, however many traces draw it.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from parsgd.report.study import (
    MEASURES,
    Axis,
    Entry,
    Part,
    accuracy_range,
    axes_of,
    drawn,
    front,
    narrow,
    scaling_lines,
)
from parsgd.report.style import FILLS, workers_of
from parsgd.words import MISSING, number

LINES = 36  # on one plot; the filters thin them out
CROWD = 16  # more lines than this are drawn thinner


def plots(part: Part) -> dict[str, tuple[str, go.Figure]]:
    """The plots of one task that have data: heading and figure by name."""
    entries = drawn(part.entries, LINES)
    made = {}
    measure = MEASURES[part.measure].capitalize()
    for axis in axes_of(entries):
        shown = [e for e in entries if e.curve and (max(e.curve.x[axis.key]) > 0)]
        if shown:
            against = axis.title.partition(",")[0].partition(" (")[0]
            title = f"{measure} against {against}"
            made[axis.key] = title, _convergence(part, shown, axis)
    lines = scaling_lines(part.entries)
    if lines:
        made["throughput"] = "Throughput against workers", _throughput(lines)
    finished = [
        e
        for e in part.entries
        if e.row["train_seconds"] is not None and e.row["accuracy"] is not None
    ]
    if finished:
        made["pareto"] = "Final accuracy against training time", _pareto(finished)
    return made


def facets(entry: Entry) -> dict[str, str]:
    """What the page filters by."""
    g = entry.group
    sizes = {
        key.replace("_", " "): g.setting(key)
        for key in ("workers", "local_steps", "global_batch")
    }
    # The sizes first: what follows from them filters nothing new.
    named = {"strategy": g.strategy, "task": g.task, **sizes, **g.varied}
    return {
        key: MISSING if value is None else str(value) for key, value in named.items()
    }


def _convergence(part: Part, entries: Sequence[Entry], axis: Axis) -> go.Figure:
    figure = go.Figure()
    for entry in entries:
        figure.add_traces(_curve(entry, axis, thin=len(entries) > CROWD))
    # The first entry is the first drawn and would lie below: the best goes on top.
    figure.data = figure.data[::-1]
    # "100m" would read as minutes.
    form = "~g" if axis.key == "seconds" else "~s"
    figure.update_xaxes(title=axis.title, tickformat=form)
    if axis.log:
        dtick = "D2" if narrow(entries, axis.key) else 1
        figure.update_xaxes(type="log", dtick=dtick)
    figure.update_yaxes(title=MEASURES[part.measure])
    if part.measure == "test_accuracy":
        low, top = accuracy_range(entries, part.target.value)
        figure.update_yaxes(range=[low, top])
    if part.target.value is not None:
        figure.add_hline(
            y=part.target.value,
            line={"dash": "4px,4px", "width": 1, "color": "#888888"},
            annotation={"text": f"target {part.target.value:g}", "font": {"size": 11}},
            annotation_position="top left",
        )
    return figure


def _curve(entry: Entry, axis: Axis, *, thin: bool) -> list[Any]:
    curve, look = entry.curve, entry.look
    if curve is None:
        return []
    keep = [i for i, x in enumerate(curve.x[axis.key]) if x > 0 or not axis.log]
    x = [_short(curve.x[axis.key][i]) for i in keep]
    y = [_short(curve.y[i]) for i in keep]
    name = escape(entry.group.label)
    if curve.status != "completed":
        name += f" ({curve.status})"
    unit = {"seconds": " s", "bytes": "B"}.get(axis.key, "")
    form = ".3s" if axis.key != "seconds" else ".3~f"
    line = go.Scatter(
        x=x,
        y=y,
        name=name,
        mode="lines+markers",
        line=look.line | {"width": 1.3 if thin else 2},
        marker={"symbol": look.symbol, "size": 4 if thin else 6},
        meta=_meta(entry),
        hovertemplate=f"<b>%{{y:.4f}}</b> at %{{x:{form}}}{unit}<br>%{{meta.about}}"
        "<extra></extra>",
    )
    if curve.sem is None:
        return [line]
    sem = [curve.sem[i] for i in keep]
    low = [_short(m - s) for m, s in zip(y, sem, strict=True)]
    high = [_short(m + s) for m, s in zip(y, sem, strict=True)]
    band = go.Scatter(
        x=x + x[::-1],
        y=high + low[::-1],
        fill="toself",
        fillcolor=_faint(look.color),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        meta={"key": key_of(entry)},
    )
    return [line, band]


def _throughput(lines: dict[str, list[Entry]]) -> go.Figure:
    figure = go.Figure()
    for name, line in lines.items():
        look = line[0].look
        figure.add_scatter(
            x=[workers_of(e.group) for e in line],
            y=[_short(e.row["samples_per_second"]) for e in line],
            name=escape(name),
            mode="lines+markers",
            line={"color": look.color, "width": 2},
            marker={"symbol": "circle" + FILLS[look.variant], "size": 8},
            meta={"keys": [key_of(e) for e in line]},  # one per point
            customdata=[number(e.row["samples_per_second"]) for e in line],
            hovertemplate="<b>%{customdata} samples/s</b><br>%{text}<extra></extra>",
        )
    counts = sorted({workers_of(e.group) for line in lines.values() for e in line})
    figure.update_xaxes(title="workers", tickvals=counts)
    if counts[0] > 0:
        figure.update_xaxes(type="log")
    figure.update_yaxes(title="samples/s", tickformat="~s", rangemode="tozero")
    return figure


def _pareto(entries: Sequence[Entry]) -> go.Figure:
    points = [(e.row["train_seconds"], e.row["accuracy"]) for e in entries]
    best = [points[i] for i in front(points)]
    figure = go.Figure()
    figure.add_scatter(
        x=[_short(x) for x, _ in best],
        y=[_short(y) for _, y in best],
        mode="lines",
        line={"color": "#888888", "width": 1.5},
        hoverinfo="skip",
        meta={"front": True},  # the page joins anew what its filters leave
    )
    for entry, (x, y) in zip(entries, points, strict=True):
        sem = entry.row["accuracy_sem"]
        figure.add_scatter(
            x=[_short(x)],
            y=[_short(y)],
            error_y={"array": [_short(sem)], "thickness": 1, "width": 0}
            if sem is not None
            else None,
            name=escape(entry.group.label),
            mode="markers",
            marker={
                "color": entry.look.color,
                "symbol": entry.look.symbol,
                "size": 10,
            },
            meta=_meta(entry),
            hovertemplate="<b>%{y:.4f}</b> in %{x:.3~f} s<br>%{meta.about}"
            "<extra></extra>",
        )
    figure.update_xaxes(title="training time of the whole run (s)")
    figure.update_yaxes(title="final test accuracy", tickformat=".3~f")
    return figure


def key_of(entry: Entry) -> str:
    """The name under which the page finds a configuration's facets and words."""
    return f"{entry.group.task}: {entry.group.label}"


def _meta(entry: Entry) -> dict[str, Any]:
    return {"key": key_of(entry), "about": True}


def about(entry: Entry) -> str:
    """What a hover tells of a configuration, as plotly's few tags."""
    row, lines = entry.row, [f"<b>{escape(entry.group.label)}</b>"]
    sizes = {
        "workers": row["workers"],
        "H": row["local_steps"],
        "global batch": row["global_batch"],
    }
    lines.append(", ".join(f"{k} {v}" for k, v in sizes.items() if v is not None))
    if row["learning_rate"] is not None:
        lines.append(f"learning rate {row['learning_rate']:.4g}, n = {row['n']}")
    return "<br>".join(lines)


def _faint(color: str) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _short(value: float) -> float:
    """Six digits: what a plot can show, so that the page stays small."""
    return float(f"{value:.6g}")
