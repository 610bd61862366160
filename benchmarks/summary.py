"""Of a file of windows, a row per cell: ``python -m benchmarks.summary FILE``.

Ratios are medians over the rounds of windows, in which all candidates took turns:
``fit`` with ``placement=auto`` over the fastest JAX candidate of the cell, ``fit`` in
other placements included, and ``fit`` in a placement over the fastest hand-written loop
on as many devices. What was not measured, or failed, is left empty.
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
    both = (_fastest(hand), auto)
    words = ["" if c is None else f"{c['median']:,.0f}" for c in both]
    words += ["" if x is None else f"{x:.2f}" for x in shares(candidates).values()]
    peer = _fastest(peers)
    times = _ratio(auto, peer)
    words.append("" if times is None else f"{peer['median']:,.0f} ({times:.1f} x)")
    return " | ".join(words) + " |"


def shares(candidates: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The three ratios of a cell; None where one side was not measured."""
    ours, hand, _ = _sides(candidates)
    found = {"auto": _ratio(_auto(ours), _fastest(ours + hand) if hand else None)}
    for kind, devices in (("vmap", 1), ("shard_map", 2)):
        start, same = f"fit, {kind}", [c for c in hand if c["devices"] == devices]
        mine = [c for c in ours if c["name"].startswith(start)]
        mine = [c for c in mine if c["devices"] == devices]
        found[kind] = _ratio(_fastest(mine), _fastest(same))
    return found


def counts(report: dict[str, Any]) -> list[tuple[str, str]]:
    """How many cells reach 0.95 by each of the ratios, in words."""
    found = [shares(candidates) for candidates in report["cells"].values()]
    words = []
    for name in ("auto", "vmap", "shard_map"):
        values = [x for each in found if (x := each[name]) is not None]
        good = sum(round(x, 2) >= 0.95 for x in values)  # as shown
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


def _auto(ours: Sequence[dict[str, Any]]) -> Any:
    return next((c for c in ours if c["name"] == AUTO), None)


def _fastest(candidates: Sequence[dict[str, Any]]) -> Any:
    return max(candidates, key=lambda c: c["median"], default=None)


def _ratio(one: Any, other: Any) -> float | None:
    if one is None or other is None:
        return None
    pairs = zip(one["rates"], other["rates"], strict=True)
    return statistics.median(a / b for a, b in pairs)


if __name__ == "__main__":
    main()
