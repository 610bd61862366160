"""Step time and time to accuracy over slow links, beside PyTorch DDP.

Measures, in `parsgd lab` with each process on one core:

- the time of a step for each link, number of processes, model and method, as medians of
  windows of the same run, and of the same work without any exchange (``alone``: all
  processes train by themselves at the same time; for methods with local steps, with as
  many of these), so that the rest is the share that exchanging takes, coding included;
- how many steps each method takes to the target accuracy. That does not depend on the
  link, so it is counted once, and a time to accuracy is steps x time of a step.

What was measured is kept in a file and not measured again: an interrupted call goes on
where it was.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import lab_table, measure
from benchmarks.lab_runs import (
    BATCH,
    LOCAL_STEPS,
    LR,
    METHODS,
    MODELS,
    ROOT,
    Cell,
    measured,
)
from parsgd.lab import network

STORE = ROOT / "outputs" / "lab.json"
LINKS = ("100mbit", "1gbit", "10gbit", "unlimited")
PROCESSES = (2, 4)
# What --quick stands for; what is given beside it counts.
QUICK = {
    "store": STORE.with_name("lab_quick.json"),
    "models": ["mlp_258k"],
    "links": ["1gbit"],
    "processes": [2],
    "windows": 2,
    "seconds": 0.3,
    "epochs": 0.5,
    "seeds": 1,
    "patience": 0,
    "target": 0.7,
}
# Of a machine; a kernel or memory may be another.
SAME = ("cpu", "cores", "python", "versions")


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """What was asked for; methods of the same link one after the other."""
    for model in options.models:
        for count in options.processes:
            for link in ("steps", *options.links):
                for method in METHODS:
                    # Without an exchange there is no link, and no common model.
                    alone = "alone" in method
                    if alone and link == "steps":
                        continue
                    seeds = range(options.seeds) if link == "steps" else (0,)
                    for seed in seeds:
                        yield Cell(model, count, link, method, seed)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    many = {"nargs": "+"}
    parser.add_argument("--models", choices=[*MODELS], default=[*MODELS], **many)
    parser.add_argument("--links", default=[*LINKS], help="as of parsgd lab", **many)
    parser.add_argument("--processes", type=int, default=[*PROCESSES], **many)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--windows", type=int, default=5, help="of a cell")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a window, about")
    parser.add_argument("--target", type=float, default=0.85, help="accuracy")
    parser.add_argument("--epochs", type=float, default=10, help="at most, to it")
    parser.add_argument("--seeds", type=int, default=3, help="for steps to the target")
    parser.add_argument("--patience", type=int, default=1, help="if others disturb")
    parser.add_argument("--free", action="store_true", help="on any core, not on one")
    parser.add_argument(
        "--again", action="store_true", help="measure what was measured once more"
    )
    parser.add_argument("--quick", action="store_true", help="a short try of a few")
    parser.add_argument("--list", action="store_true", help="show the cells and stop")
    parser.add_argument("--store", type=Path, default=STORE, help="what was measured")
    parser.add_argument("--publish", action="store_true", help="write docs/ and stop")
    options = parser.parse_args()
    if options.quick and options.publish:
        parser.error("--quick --publish: a short try is not for docs/; leave one out")
    if options.quick:
        parser.set_defaults(**QUICK)
        options = parser.parse_args()
    for link in options.links:
        network.parse(link)
    store = {"cells": {}}
    if options.store.exists():
        store = json.loads(options.store.read_text())
    if options.publish:
        lab_table.publish(store, ROOT / "docs")
        return
    settings = {"windows": options.windows, "seconds": options.seconds}
    settings |= {"target": options.target, "epochs": options.epochs, "lr": LR}
    settings |= {"batch": BATCH, "local_steps": LOCAL_STEPS}
    settings["pinned"] = not options.free
    machine = measure.machine()
    try:
        machine["versions"] |= {name: version(name) for name in ("parsgd", "torch")}
    except PackageNotFoundError as error:
        parser.error(
            f"{error.name} is needed, to compare with: pip install -e '.[torch]'"
        )
    if store["cells"]:
        known = _differences(store.get("settings", {}), settings, settings)
        if not options.list:  # which shows what others have measured, too
            known += _differences(store.get("machine", {}), machine, SAME)
        if known:
            parser.error(
                f"{options.store} was measured with other conditions ({known[0]}), and "
                "tables compare what was measured with the same: give another --store, "
                "or delete this file"
            )
    else:
        store |= {"settings": settings, "machine": machine}
    chosen = [cell for cell in cells(options) if options.only in cell.name]
    if not chosen:
        parser.error(f"no cell's name contains {options.only!r}: see --list")
    for number, cell in enumerate(chosen, 1):
        known = store["cells"].get(cell.name, {"error": "not measured"})
        if options.list:
            print(cell.name, "" if "error" in known else "measured")
            continue
        if "error" in known or options.again:
            known = store["cells"][cell.name] = measured(cell, options)
            options.store.parent.mkdir(parents=True, exist_ok=True)
            fresh = options.store.with_suffix(".new")
            fresh.write_text(json.dumps(store, indent=1) + "\n")
            fresh.replace(options.store)
        print(
            f"[{number}/{len(chosen)}] {lab_table.line(cell.name, known)}", flush=True
        )
    if not options.list:
        print(lab_table.tables(store))


def _differences(then: dict, now: dict, keys: Iterable[str]) -> list[str]:
    pairs = ((key, then.get(key), now[key]) for key in keys)
    return [f"{key} {old}, now {new}" for key, old, new in pairs if old != new]


if __name__ == "__main__":
    main()
