"""Run the benchmarks: ``python -m benchmarks --quick | --full [--only NAME]``."""

import argparse
import json
import sys
from pathlib import Path

from benchmarks import candidates, data, measure, ours
from benchmarks.candidates import Cell

QUICK = (
    Cell("sync", "mlp_258k", 2),
    Cell("sync", "cnn", 2),
    Cell("local", "mlp_258k", 4),
    Cell("diloco_adamw", "mlp_258k", 4),
)
WORKERS = (1, 2, 4, 8, 64)


def cells(quick: bool, full: bool, only: str) -> list[Cell]:
    """The cells to run: of four or of all, those whose name contains ``only``."""
    chosen = QUICK
    if full or (only and not quick):
        chosen = [
            Cell(algorithm, model, workers, dropout)
            for model in candidates.MODELS
            for dropout in (False, True)
            for algorithm in candidates.ALGORITHMS
            for workers in WORKERS
            # Of the CNN only where lanes' gradients take another way because of it.
            if not (dropout and model == "cnn" and algorithm != "sync")
        ]
    return [cell for cell in chosen if only in cell.name]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="four cells (the default)")
    size.add_argument("--full", action="store_true", help="every cell")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument(
        "--way",
        action="append",
        default=[],
        help="only candidates whose name contains this, or another --way",
    )
    parser.add_argument("--repeats", type=int, default=5, help="windows of a candidate")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a window")
    parser.add_argument(
        "--patience", type=int, default=3, help="retries of a disturbed window"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="JSON file for all windows, see benchmarks.summary; of the same commit "
        "and options, cells that it has are left out",
    )
    options = parser.parse_args()
    report = {
        "machine": measure.machine(),
        "data": data.load().source,
        "commit": measure.commit(),
        "windows": [options.repeats, options.seconds, options.patience, *options.way],
        "cells": {},
    }
    if options.output and options.output.exists():
        before = json.loads(options.output.read_text())
        others = [k for k in ("commit", "windows") if before.get(k) != report[k]]
        if others:
            parser.error(
                f"{options.output} was measured with other {' and '.join(others)}: "
                "move it away, or give another --output"
            )
        report = before
    chosen = cells(options.quick, options.full, options.only)
    if not chosen:
        among = "of the four of --quick contains" if options.quick else "contains"
        such = f"names are such as {QUICK[0].name}"
        parser.error(f"no cell's name {among} {options.only!r}: {such}")
    for number, cell in enumerate(chosen, 1):
        if cell.name in report["cells"]:
            continue
        # Not among the tables: it is minutes until the first of them.
        print(f"[{number}/{len(chosen)}] {cell.name}", file=sys.stderr, flush=True)
        ways = candidates.handwritten(cell, seconds=options.seconds)
        ways += ours.ours(cell, seconds=options.seconds)
        ways += candidates.peers(cell, seconds=options.seconds)
        names = options.way or [""]
        ways = [way for way in ways if any(name in way.name for name in names)]
        results = measure.compare(
            ways, repeats=options.repeats, patience=options.patience
        )
        report["cells"][cell.name] = measure.record(results)
        print(f"\n### {cell.name}\n\n{measure.table(results)}", flush=True)
        if options.output:
            new = options.output.with_suffix(".new")
            new.write_text(json.dumps(report, indent=1))
            new.replace(options.output)


if __name__ == "__main__":
    main()
