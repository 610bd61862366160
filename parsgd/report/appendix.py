"""What the page tells below its plots, as HTML: what failed, where it ran, terms."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from parsgd.report.remarks import set_aside
from parsgd.report.study import Study
from parsgd.results import COLUMNS
from parsgd.results.export import size
from parsgd.words import MISSING


def problems(study: Study) -> str:
    """The jobs that did not complete, and those that do not count."""
    rows = [
        (entry.group.label, job.status, job.reason or "no reason given", job.folder)
        for part in study.parts
        for entry in part.entries
        for job in entry.group.jobs
        if job.status != "completed"
    ]
    if not rows:
        return f"<p>Every job completed.</p>{not_counted(study)}"
    heads = ("Configuration", "Status", "Reason", "Folder")
    return _html_table(heads, rows) + not_counted(study)


def not_counted(study: Study) -> str:
    """Which jobs were set aside for others, if any were."""
    text = set_aside([e.group for part in study.parts for e in part.entries])
    return f"<p>{escape(text)}</p>" if text else ""


def definitions(study: Study) -> str:
    """The columns of the table, as a list of terms."""
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


def environment(study: Study) -> str:
    """On which machines the jobs ran, with which versions."""
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
    # Scripts may say what they like of a machine.
    listed, memory = machine.get("devices"), machine.get("memory_bytes")
    devices = str(listed)
    if isinstance(listed, list):
        # Without their numbers: jobs ask for as many as they like of one machine.
        kinds = dict.fromkeys(re.sub(r"[_:]\d+$", "", str(name)) for name in listed)
        devices = ", ".join(kinds) or "not recorded"
    memory = size(memory) if isinstance(memory, int | float) else memory or MISSING
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
