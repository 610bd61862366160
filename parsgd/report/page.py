"""One HTML file with the answer, the table and the plots, complete in itself."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from html import escape
from importlib import resources
from string import Template
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from parsgd.report.answer import Tile, sentences, tiles
from parsgd.report.appendix import definitions, environment, not_counted, problems
from parsgd.report.grid import assets, grid
from parsgd.report.plots import LINES, about, facets, key_of, plots
from parsgd.report.remarks import doubts, short_runs
from parsgd.report.study import Part, Study, curves_of, drawn
from parsgd.report.style import DASHES, symbols, worker_counts, workers_of
from parsgd.results.export import no_spread
from parsgd.results.said import lanes_of
from parsgd.words import MISSING, counted

CONVERGENCE = (
    "Lines are means over the runs of a configuration, at the evaluations that all of "
    "them have; bands are ± 1 standard error. The accuracy axis starts where it is "
    "worth reading: double-click a plot to see all of it."
)


def render(study: Study) -> str:
    """The page as one string of HTML."""
    figures = {
        f"{name}-{i}": made
        for i, part in enumerate(study.parts)
        for name, made in plots(part).items()
    }
    tasks = ", ".join(part.task for part in study.parts)
    data = {
        "figures": {key: _figure(made) for key, (_, made) in figures.items()},
        "configurations": {
            key_of(e): {"facets": facets(e), "about": about(e)} for e in _entries(study)
        },
        "facets": _facets(study),
        "colors": _colors(study),
        "dashes": _dashes(study),
    }
    return Template(_asset("page.html")).substitute(
        title=f"Parallel SGD on {escape(tasks)}",
        css=_asset("page.css"),
        subtitle=_subtitle(study),
        aside=not_counted(study),
        answers=_answers(study),
        sorted=_sorted(study),
        grid=grid(study.table) + _paragraph(no_spread(study.table)),
        plots="".join(_plots(i, part, figures) for i, part in enumerate(study.parts)),
        problems=problems(study),
        definitions=definitions(study),
        environment=environment(study),
        itables=assets(),
        plotly=get_plotlyjs(),
        # "</script>" or "<!--" in a label must not end or swallow the script
        data=re.sub("<(?=[/!sS])", r"\\u003c", json.dumps(data, separators=(",", ":"))),
        js=_asset("page.js"),
    )


def _figure(figure: go.Figure) -> dict[str, Any]:
    """A figure as plotly.js reads it, without the template that the page replaces."""
    made = figure.to_plotly_json()
    made["layout"].pop("template", None)
    return {"data": made["data"], "layout": made["layout"]}


def _asset(name: str) -> str:
    return (resources.files("parsgd.report") / name).read_text(encoding="utf-8")


def _entries(study: Study) -> list:
    return [entry for part in study.parts for entry in part.entries]


def _subtitle(study: Study) -> str:
    counts = Counter(job.status for job in study.jobs)
    ended = ", ".join(f"{n} {status}" for status, n in counts.items())
    started = sorted(job.started[:10] for job in study.jobs if job.started)
    days = list(dict.fromkeys([*started[:1], *started[-1:]]))
    when = f"run {' to '.join(days)}, " if days else ""
    configurations = counted(study.table.height, "configuration")
    return escape(
        f"{counted(len(study.jobs), 'job')} ({ended}) of {configurations}; "
        f"{when}report made {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
    )


def _answers(study: Study) -> str:
    said = [_answer(part, len(study.parts) > 1) for part in study.parts]
    goals = {part.task: part.target for part in study.parts}
    said += map(_paragraph, doubts([e.group for e in _entries(study)], goals))
    return "".join(said)


def _answer(part: Part, several: bool) -> str:
    heading = f"<h2>{escape(part.task)}</h2>" if several else ""
    text = _strong(" ".join(sentences(part)), [e.group.label for e in part.entries])
    cards = "".join(map(_tile, tiles(part)))
    cards = f'<div class="tiles">{cards}</div>' if cards else ""
    return f'{heading}<p class="answer">{text}</p>{cards}'


def _strong(text: str, names: Iterable[str]) -> str:
    """The text as HTML with the names of configurations set off."""
    # The longest first: one name may begin like another.
    ordered = sorted(map(re.escape, names), key=len, reverse=True)
    pieces = re.split(f"({'|'.join(ordered)})", text)
    return "".join(
        f"<strong>{escape(piece)}</strong>" if i % 2 else escape(piece)
        for i, piece in enumerate(pieces)
    )


def _tile(tile: Tile) -> str:
    return (
        f'<div class="tile"><div class="what">{escape(tile.title)}</div>'
        f'<div class="figure">{escape(tile.figure)}</div>'
        f"<div>{escape(tile.configuration)}</div>"
        f'<div class="note">{escape(tile.note)}</div></div>'
    )


def _facets(study: Study) -> dict[str, list[str]]:
    """What can be filtered: settings with several values, none that follows another.

    Only configurations with something to draw count, and a setting that another one
    fixes (the batch by the workers, say) would filter nothing new.
    """
    named = [
        facets(entry)
        for part in study.parts
        for entry in part.entries
        if entry.row["n"] or entry in curves_of(part.entries)
    ]
    kept: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for one in named for key in one):
        values = sorted({one.get(key, MISSING) for one in named}, key=_by_number)
        follows = any(
            len({(one.get(other), one.get(key)) for one in named}) == len(kept[other])
            for other in kept
        )
        if 1 < len(values) <= 16 and not follows:
            kept[key] = values
    return kept


def _by_number(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text


def _colors(study: Study) -> dict[str, str]:
    """Of strategies that have one: those of several are told by the hover."""
    found: dict[str, set[str]] = {}
    for entry in _entries(study):
        found.setdefault(entry.group.strategy, set()).add(entry.look.color)
    return {name: min(own) for name, own in found.items() if len(own) == 1}


def _dashes(study: Study) -> dict[str, str]:
    counts = worker_counts([entry.group for entry in _entries(study)])
    return {str(n): DASHES[i % len(DASHES)] for i, n in enumerate(counts)}


def _sorted(study: Study) -> str:
    """How the rows come, and why by samples where nobody asked for that."""
    orders = {
        task: "The most accurate first."
        if sort == "accuracy"
        else f"Fewest {sort} to the target first, then those that missed it or "
        "diverged."
        for task, sort in study.sorts.items()
    }
    several = len(study.parts) > 1
    remark = short_runs(study.short, several=several)
    said = [*dict.fromkeys(orders.values())]
    if len(said) > 1:
        said = [f"{task}: {text}" for task, text in orders.items()]
    if remark:
        said.append(f"{remark[0].upper()}{remark[1:]}.")
    return escape(" ".join(said))


def _plots(index: int, part: Part, figures: Mapping[str, tuple[str, Any]]) -> str:
    names = [name for name in figures if name.endswith(f"-{index}")]
    heading = f"<h3>{escape(part.task)}</h3>"
    if not names:
        return f"{heading}<p>No run was evaluated, so there is nothing to draw.</p>"
    limit = len(curves_of(part.entries)), len(drawn(part.entries, LINES))
    note = CONVERGENCE
    if limit[1] < limit[0]:
        note += (
            f" {limit[1]} of {limit[0]} configurations have a line: the best of each "
            "strategy and worker count, then the next best; the table has all."
        )
    key = symbols([e.group for e in part.entries], [e.look for e in part.entries])
    cells = "".join(
        f"<figure><figcaption>{escape(figures[name][0])}</figcaption>"
        f'<div class="plot" id="{name}"></div>{_note(name, part)}</figure>'
        for name in names
    )
    note = f"{escape(key)} {note}".strip()
    plots = f'{_color_key(part)}<div class="plots">{cells}</div>'
    return f'{heading}<p class="note">{note}</p>{plots}'


def _color_key(part: Part) -> str:
    """What colours stand for, where that is more than the strategies of the filters."""
    names = {e.look.name: e.look.color for e in curves_of(part.entries)}
    if {*names} == {e.group.strategy for e in curves_of(part.entries)}:
        return ""
    items = "".join(
        f'<span><span class="swatch" style="background:{color}"></span>'
        f"{escape(name)}</span>"
        for name, color in names.items()
    )
    return f'<p class="key">{items}</p>'


def _note(name: str, part: Part) -> str:
    kind, said = name.rpartition("-")[0], []
    if kind == "bytes":
        if any(workers_of(entry.group) == 1 for entry in curves_of(part.entries)):
            said.append("A single worker sends nothing, so it has no line here.")
    elif kind == "throughput":
        said.append("Training only: compilation and evaluation are not counted.")
        if any(lanes_of(job) > 1 for e in part.entries for job in e.group.jobs):
            said.append(
                "Workers that share a device are simulated: this is not the "
                "throughput of as many devices."
            )
    elif kind == "pareto":
        said.append(
            "The line joins what no other shown matches or beats in both time and "
            "accuracy; bars are ± 1 standard error."
        )
    return _paragraph(" ".join(said))


def _paragraph(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""
