"""Of a file of windows, a row per cell: ``python -m benchmarks.summary FILE``.

Ratios are medians over the rounds of windows, in which all candidates took turns:
``fit`` with ``placement=auto`` over the fastest candidate of the cell, and ``fit`` in a
placement over the fastest hand-written loop on as many devices.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEAD = (
    "| algorithm | workers | best hand-written | `fit`, auto | of the best | vmap | "
    "shard_map, 2 devices | PyTorch DDP |"
)
AUTO, PEER = "fit, auto", "PyTorch"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.summary", description=__doc__
    )
    parser.add_argument("file", type=Path, help="of python -m benchmarks --output")
    report = json.loads(parser.parse_args().file.read_text())
    models: dict[str, list[tuple[str, Any]]] = {}
    for name, candidates in report["cells"].items():
        algorithm, model, workers = name.split("/")
        models.setdefault(model, []).append(
            (f"| {algorithm} | {workers[1:]} |", candidates)
        )
    for model, rows in models.items():
        print(f"\n### {model}\n\n{HEAD}\n|{'---|' * 8}")
        for start, candidates in rows:
            print(start, row(candidates))
    print("\n" + ", ".join(f"{name}: {shares}" for name, shares in counts(report)))


def row(candidates: Sequence[dict[str, Any]]) -> str:
    """What the table says of a cell."""
    ours, hand, peers = _sides(candidates)
    auto = _auto(ours)
    words = [f"{_fastest(hand)['median']:,.0f}", f"{auto['median']:,.0f}"]
    words += ["" if x is None else f"{x:.2f}" for x in shares(candidates).values()]
    words += [f"{p['median']:,.0f} ({_ratio(auto, p):.1f} x)" for p in peers] or [""]
    return " | ".join(words) + " |"


def shares(candidates: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The three ratios of a cell; None where one side was not measured."""
    ours, hand, _ = _sides(candidates)
    found: dict[str, float | None] = {
        "auto": _ratio(_auto(ours), _fastest(ours + hand))
    }
    for kind, devices in (("vmap", 1), ("shard_map", 2)):
        start, same = f"fit, {kind}", [c for c in hand if c["devices"] == devices]
        mine = [c for c in ours if c["name"].startswith(start)]
        mine = [c for c in mine if c["devices"] == devices]
        found[kind] = _ratio(mine[0], _fastest(same)) if mine and same else None
    return found


def counts(report: dict[str, Any]) -> list[tuple[str, str]]:
    """How many cells reach 0.95 by each of the ratios, in words."""
    found = [shares(candidates) for candidates in report["cells"].values()]
    words = []
    for name in ("auto", "vmap", "shard_map"):
        values = [x for each in found if (x := each[name]) is not None]
        good = sum(x >= 0.95 for x in values)
        words.append((name, f"{good} of {len(values)} at 0.95 or more"))
    return words


def _sides(candidates: Sequence[dict[str, Any]]) -> tuple[list, list, list]:
    """Those that ran: ``fit``, hand-written loops, other frameworks."""
    sides: tuple[list, list, list] = [], [], []
    for c in candidates:
        side = 0 if c["name"].startswith("fit") else 1
        if c["rates"]:
            sides[2 if c["name"].startswith(PEER) else side].append(c)
    return sides


def _auto(ours: Sequence[dict[str, Any]]) -> dict[str, Any]:
    (auto,) = [c for c in ours if c["name"] == AUTO]
    return auto


def _fastest(candidates: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return max(candidates, key=lambda c: c["median"])


def _ratio(one: dict[str, Any], other: dict[str, Any]) -> float:
    pairs = zip(one["rates"], other["rates"], strict=True)
    return statistics.median(a / b for a, b in pairs)


if __name__ == "__main__":
    main()
