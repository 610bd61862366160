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
from parsgd.report.grid import assets, grid
from parsgd.report.plots import LINES, about, facets, key_of, plots
from parsgd.report.study import Part, Study, curves_of, drawn
from parsgd.report.style import DASHES, symbols, worker_counts
from parsgd.results import COLUMNS
from parsgd.results.export import MISSING, size
from parsgd.words import counted

NOTES = {
    "convergence": "Lines are means over the runs of a configuration, at the "
    "evaluations that all of them have; bands are ± 1 standard error. The accuracy "
    "axis starts where it is worth reading: double-click a plot to see all of it.",
    "bytes": "A single worker sends nothing, so it has no line here.",
    "throughput": "Training only: compilation and evaluation are not counted.",
    "pareto": "The line joins the runs that no other shown beats in both time and "
    "accuracy; bars are ± 1 standard error.",
}


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
        answers="".join(_answer(part, len(study.parts) > 1) for part in study.parts),
        sorted=_sorted(study.sort),
        grid=grid(study.table),
        plots="".join(_plots(i, part, figures) for i, part in enumerate(study.parts)),
        problems=_problems(study),
        definitions=_definitions(study),
        environment=_environment(study),
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


def _sorted(sort: str) -> str:
    if sort == "accuracy":
        return "The most accurate first."
    return f"Fewest {sort} to the target first, then those that missed it."


def _plots(index: int, part: Part, figures: Mapping[str, tuple[str, Any]]) -> str:
    names = [name for name in figures if name.endswith(f"-{index}")]
    heading = f"<h3>{escape(part.task)}</h3>"
    if not names:
        return f"{heading}<p>No run was evaluated, so there is nothing to draw.</p>"
    limit = len(curves_of(part.entries)), len(drawn(part.entries, LINES))
    note = NOTES["convergence"]
    if limit[1] < limit[0]:
        note += (
            f" {limit[1]} of {limit[0]} configurations have a line: the best of each "
            "strategy and worker count, then the next best; the table has all."
        )
    key = symbols([e.group for e in part.entries], [e.look for e in part.entries])
    cells = "".join(
        f"<figure><figcaption>{escape(figures[name][0])}</figcaption>"
        f'<div class="plot" id="{name}"></div>{_note(name)}</figure>'
        for name in names
    )
    note = f"{escape(key)} {note}".strip()
    return f'{heading}<p class="note">{note}</p><div class="plots">{cells}</div>'


def _note(name: str) -> str:
    note = NOTES.get(name.rpartition("-")[0])
    return f'<p class="note">{note}</p>' if note else ""


def _problems(study: Study) -> str:
    rows = [
        (entry.group.label, job.status, job.reason or "no reason given", job.folder)
        for entry in _entries(study)
        for job in entry.group.jobs
        if job.status != "completed"
    ]
    repeats = sum(entry.group.repeats for entry in _entries(study))
    set_aside = (
        f"<p>{counted(repeats, 'job')} with the configuration and seed of another set "
        "aside: a completed one counts before others, then the latest.</p>"
        if repeats
        else ""
    )
    if not rows:
        return f"<p>Every job completed.</p>{set_aside}"
    heads = ("Configuration", "Status", "Reason", "Folder")
    return _html_table(heads, rows) + set_aside


def _definitions(study: Study) -> str:
    varied = [name for name in study.table.columns if name not in COLUMNS]
    terms = [
        (
            column.title + (f" ({column.unit})" if column.unit else ""),
            name,
            column.meaning,
        )
        for name, column in COLUMNS.items()
    ]
    terms += [(name, name, "varies across the jobs; as configured") for name in varied]
    return "".join(
        f"<dt>{escape(title)} <code>{escape(name)}</code></dt>"
        f"<dd>{escape(meaning)}</dd>"
        for title, name, meaning in terms
    )


def _environment(study: Study) -> str:
    # A job that was refused never came to ask for devices.
    ran = [job for job in study.jobs if job.machine and job.machine.get("devices")]
    machines = Counter(_machine(job.machine) for job in ran)
    packages = Counter(_versions(job.versions) for job in study.jobs if job.versions)
    warning = (
        "<p><strong>The jobs ran on different machines: times of one do not compare "
        "with those of another.</strong></p>"
        if len(machines) > 1
        else ""
    )
    rows = [("Machine", text, n) for text, n in machines.most_common()]
    rows += [("Versions", text, n) for text, n in packages.most_common()]
    if not rows:
        return "<p>No job recorded its machine.</p>"
    return warning + _html_table(("", "", "Jobs"), rows)


def _machine(machine: Mapping[str, Any]) -> str:
    kinds = Counter(str(d) for d in machine.get("devices") or ())
    devices = ", ".join(kinds) or "not recorded"
    memory = size(machine.get("memory_bytes"))
    return (
        f"{machine.get('cpu')}, {machine.get('cores')} cores, {memory} memory, "
        f"{machine.get('platform')}; devices: {devices}"
    )


def _versions(versions: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {v}" for name, v in versions.items() if v)


def _html_table(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="plain"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
