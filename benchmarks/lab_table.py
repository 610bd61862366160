"""What the network lab measured, as tables, a figure and a part of docs/lab.md."""

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lab_runs import METHODS, MODELS
from benchmarks.measure import BUSY
from parsgd.lab import network
from parsgd.report.style import COLORS, colors_of

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
SAME = {"DDP": "sync_sgd", "DDP, PowerSGD": "power_sgd"}  # algorithms
ALIKE = 1.2  # times the least time: as finely as steps to a target are counted
COMPRESSED = ("one_bit_sgd", "top_k_sgd", "power_sgd")
HEAD = (
    "| link | method | ms per step (range) | exchanging | samples/s "
    "| steps to {target:g} | s to {target:g} | n |\n|---|---|---|---|---|---|---|---|"
)

SUMMARY = (
    "| model, processes | link | of the line | of DDP's | compressed "
    "| first at {target:g} | sync_sgd |\n|---|---|---|---|---|---|---|"
)


def line(name: str, cell: dict) -> str:
    """One measurement in a line."""
    if "error" in cell:
        return f"{name}: failed: {cell['error']}"
    if cell["link"] == "steps":
        return f"{name}: {cell['steps']} steps, accuracy {cell['accuracy']:.4f}"
    others = f", others took {cell['disturbed']:.0%}"
    return f"{name}: {_milliseconds(cell)} ms per step{others}"


def _milliseconds(cell: dict) -> str:
    times = [1e3 * seconds for seconds in cell["seconds"]]
    low, high = _three_digits(min(times)), _three_digits(max(times))
    return f"{_three_digits(statistics.median(times))} ({low}-{high})"


def _three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def _groups(store: dict) -> Iterator[tuple[str, int, list[dict]]]:
    """Measurements of one model and number of processes."""
    found: dict[tuple[str, int], list[dict]] = {}
    for cell in store["cells"].values():
        found.setdefault((cell["model"], cell["processes"]), []).append(cell)
    for (model, processes), group in found.items():
        yield model, processes, group


def _rate(cell: dict) -> float:
    return network.parse(cell["link"]).rate


def steps_of(group: list[dict], method: str) -> tuple[float | None, int]:
    """The median number of steps to the target, and of how many seeds.

    None if it was not measured, or if a seed did not reach the target.
    """
    cells = [c for c in group if c["link"] == "steps" and c["method"] == method]
    # A run that failed says nothing about the method.
    steps = [cell.get("steps") for cell in cells if "error" not in cell]
    if not steps or None in steps:
        return None, len(steps)
    return statistics.median(steps), len(steps)


def rows(store: dict, group: list[dict]) -> list[dict]:
    """One per link and method: medians, and what follows from them."""
    out = []
    timed = [cell for cell in group if cell["link"] != "steps"]
    methods = list(METHODS)
    timed.sort(key=lambda c: (_rate(c), methods.index(c["method"])))
    alone: dict[str, list[float]] = {}  # no link is in its way
    for cell in timed:
        if "alone" in cell["method"] and "seconds" in cell:
            alone.setdefault(cell["method"], []).extend(cell["seconds"])
    for cell in timed:
        if "error" in cell:
            out.append(cell)
            continue
        seconds = statistics.median(cell["seconds"])
        reference = _alone(cell["method"])
        own = statistics.median(alone[reference]) if reference in alone else None
        steps, seeds = steps_of(group, cell["method"])
        out.append(
            cell
            | {
                "step": seconds,
                "alone": own,
                "share": None if own is None else 1 - own / seconds,
                "rate": store["settings"]["batch"] * cell["processes"] / seconds,
                "steps": steps,
                "seeds": seeds,
                "to_target": None if steps is None else steps * seconds,
            }
        )
    return out


def _alone(method: str) -> str:
    """The method whose steps are the same but for the exchange."""
    if METHODS[method].hook:
        return "DDP alone"
    return "alone, local" if METHODS[method].local_steps > 1 else "alone"


def tables(store: dict) -> str:
    """Markdown: a table for each model and number of processes."""
    parts = []
    for model, processes, group in _groups(store):
        lines = [f"### {model}, {processes} processes", ""]
        lines.append(HEAD.format(target=store["settings"]["target"]))
        lines += [_row(row) for row in rows(store, group)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def summary(store: dict) -> str:
    """Markdown: what follows from the tables, a line for each link."""
    lines = [SUMMARY.format(target=store["settings"]["target"])]
    for model, processes, group in _groups(store):
        found = [row for row in rows(store, group) if "error" not in row]
        for link in dict.fromkeys(row["link"] for row in found):
            of = {row["method"]: row for row in found if row["link"] == link}
            said = _compared(of, MODELS[model].parameters)
            if any(said):
                lines.append(f"| {model}, {processes} | {link} | {' | '.join(said)} |")
    return "\n".join(lines)


def _compared(of: dict[str, dict], parameters: int) -> list[str]:
    """What the columns of `SUMMARY` say of one link; empty where it was not measured.

    Args:
        of: A row for each method.
        parameters: Numbers that an all-reduce of the gradients sends.
    """
    line = beside = compressed = ""
    if sync := of.get("sync_sgd"):
        bytes_sent = 8 * parameters * (sync["processes"] - 1) / sync["processes"]
        if sync["alone"] and math.isfinite(rate := _rate(sync)):
            line = f"{sync['step'] / (sync['alone'] + 8 * bytes_sent / rate):.2f}"
        if "DDP" in of:
            beside = f"{of['DDP']['step'] / sync['step']:.2f}"
        if shares := [of[m]["step"] / sync["step"] for m in COMPRESSED if m in of]:
            compressed = f"{min(shares):.2f}-{max(shares):.2f}"
    times = {m: row["to_target"] for m, row in of.items() if row["to_target"]}
    first = sorted(times, key=lambda m: times[m]) if len(times) > 1 else []
    alike = [m for m in first if times[m] < ALIKE * times[first[0]]]
    return [
        line,
        beside,
        compressed,
        ", ".join(f"{m} {_three_digits(times[m])} s" for m in alike),
        f"{_three_digits(times['sync_sgd'])} s" if "sync_sgd" in times else "",
    ]


def _row(row: dict) -> str:
    start = f"| {row['link']} | {row['method']} |"
    if "error" in row:
        said = row["error"].splitlines() or ["it said nothing"]
        return f"{start} failed: {said[-1]} | | | | | |"
    alone = "alone" in row["method"]
    share = ""
    if not alone and row["share"] is not None:
        # No faster than without an exchange: it is lost in how much times vary.
        share = f"{row['share']:.0%}" if row["share"] > 0 else "-"
    steps = "" if row["steps"] is None else f"{row['steps']:,.0f}"
    if not alone and row["seeds"] and row["steps"] is None:
        steps = "not reached"
    time = "" if row["to_target"] is None else _three_digits(row["to_target"])
    n = f"{len(row['seconds'])}" + (f", {row['seeds']}" if row["seeds"] else "")
    n += " (disturbed)" if row["disturbed"] > BUSY else ""
    return (
        f"{start} {_milliseconds(row)} | {share} | {row['rate']:,.0f} | {steps} "
        f"| {time} | {n} |"
    )


def figure(store: dict, file: Path) -> None:
    """Time to the target against the rate of the link, one panel per table."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    groups = list(_groups(store))
    lines = math.ceil(len(groups) / 2)
    size = (11, 0.8 + 3.8 * lines)
    fig, axes = pyplot.subplots(lines, 2, figsize=size, sharex=True, squeeze=False)
    names = [m for m in METHODS if m not in SAME and "alone" not in m]
    colors = {m: COLORS[i] for m, i in colors_of({m: m for m in names}).items()}
    colors |= {method: colors[same] for method, same in SAME.items()}
    shown: dict[str, Any] = {}  # one legend for all panels
    for axis, (model, processes, group) in zip(axes.flat, groups, strict=False):
        curves: dict[str, list[tuple[float, float]]] = {}
        for row in rows(store, group):
            # Without a limit there is no rate to put it at.
            if row.get("to_target") is not None and math.isfinite(_rate(row)):
                points = curves.setdefault(row["method"], [])
                points.append((_rate(row) / 1e6, row["to_target"]))
        for method, points in curves.items():
            style = "--" if method.startswith("DDP") else "-"
            x, y = zip(*sorted(points), strict=True)
            axis.plot(x, y, style, marker="o", label=method, color=colors[method])
        axis.set(xscale="log", yscale="log", title=f"{model}, {processes} processes")
        for one in (axis.xaxis, axis.yaxis):
            one.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
        axis.yaxis.set_minor_formatter(ticker.NullFormatter())
        axis.grid(alpha=0.3)
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    for axis in list(axes.flat)[len(groups) :]:
        axis.set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("Mbit/s of each link")
    for axis in axes[:, 0]:
        axis.set_ylabel(f"seconds to accuracy {store['settings']['target']:g}")
    labels = [method for method in METHODS if method in shown]
    handles = [shown[label] for label in labels]
    fig.legend(handles, labels, loc="lower center", ncols=5, frameon=False, fontsize=9)
    fig.tight_layout(rect=(0, 0.8 / size[1], 1, 1))
    fig.savefig(file, dpi=110)
    pyplot.close(fig)


def publish(store: dict, docs: Path) -> None:
    """Write tables, figure and measurements into the documents.

    Raises:
        SystemExit: Nothing was measured, or there is no place for it.
    """
    if not store["cells"]:
        raise SystemExit("nothing was measured yet: python -m benchmarks.lab")
    page = docs / "lab.md"
    text = page.read_text(encoding="utf-8")
    if not (BEGIN in text and END in text):
        raise SystemExit(f"{page} has no lines {BEGIN} and {END} to write between")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    (docs / "figures").mkdir(exist_ok=True)
    figure(store, docs / "figures" / "lab.png")
    data = docs / "figures" / "lab.json"
    data.write_text(json.dumps(store, indent=1) + "\n")
    page.write_text(f"{before}{BEGIN}\n{body(store)}\n{END}{after}", encoding="utf-8")


def body(store: dict) -> str:
    """What stands between the marks of the page."""
    image = "![Time to accuracy against the rate of the links](figures/lab.png)"
    return "\n\n".join([_conditions(store), summary(store), image, tables(store)])


def _conditions(store: dict) -> str:
    machine, settings = store["machine"], store["settings"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    where = "on one core" if settings["pinned"] else "on any core"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, "
        f"{versions}, {_dates(store)}. Fashion-MNIST, batch {settings['batch']} of "
        f"each process, {where}, plain SGD at rate {settings['lr']:g}; local SGD and "
        f"block momentum with {settings['local_steps']} local steps. n: windows of "
        f"about {settings['seconds']:g} s, and seeds of the steps to the target. "
        "Measurements: [lab.json](figures/lab.json)."
    )


def _dates(store: dict) -> str:
    """The days of the measurements; of those without one, the day of the last."""
    last = store["machine"]["date"]
    days = sorted({cell.get("date", last) for cell in store["cells"].values()})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
