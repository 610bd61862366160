"""Kill runs at random moments; they must end as if nothing had happened.

For each strategy one run is left alone. Another one gets SIGKILL again and again, at
moments drawn from the seed, many of them while it saves, and is started again until it
ends. Then the last checkpoints of both must be equal bit for bit, and so must their
records but for the times. Every checkpoint that a kill leaves behind must be readable.

    python -m benchmarks.kill_test --kills 20 --seed 0
    python -m benchmarks.kill_test --kills 30 --processes 2

With several processes half of the kills hit one of them, and the others must end by
themselves; the rest hit all at once.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import jax
import psutil

from parsgd.checkpoint.quiet import quiet
from parsgd.checkpoint.store import Store

STRATEGIES = {
    "sync_sgd": ["strategy=sync_sgd"],
    "block_momentum": ["strategy=block_momentum", "local_steps=4"],
    "one_bit_sgd": ["strategy=one_bit_sgd"],
    "post_local_sgd": ["strategy=post_local_sgd", "local_steps=4"],
}
COMMON = ["workers=4", "worker_batch=4", "optimizer=momentum", "evaluations=4"]
COMMON += ["checkpoint.keep_last=3", "cluster.timeout=20"]


def start(
    folder: Path, overrides: list[str], every: int, processes: int = 1
) -> subprocess.Popen:
    """Start, or go on with, the run in ``folder``."""
    command = [sys.executable, "-m", "parsgd.cli"]
    if processes > 1:
        command += ["launch", "--processes", str(processes), "--grace", "60"]
    command += ["train", *COMMON, *overrides]
    command += [f"checkpoint.rounds={every}", f"hydra.run.dir={folder}"]
    log = open(folder.with_suffix(".log"), "ab")  # noqa: SIM115
    return subprocess.Popen(command, stdout=log, stderr=log)


def kill(run: subprocess.Popen, processes: int, rng: random.Random) -> bool:
    """SIGKILL for a run of one process, for one of several, or for all of them.

    Returns:
        Whether it came before the run was done.
    """
    family = [psutil.Process(run.pid)] if run.poll() is None else []
    family += family[0].children(recursive=True) if family else []
    victims = family
    if processes > 1 and len(family) > processes and rng.random() < 0.5:
        victims = [rng.choice(family[1:])]
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    try:
        code = run.wait(timeout=50)
    except subprocess.TimeoutExpired:
        _end(family)
        raise SystemExit(
            f"{run.args}: a process was killed, the others go on"
        ) from None
    _, alive = psutil.wait_procs(family, timeout=10)
    if alive:
        commands = [p.cmdline() for p in alive if p.is_running()]
        _end(alive)
        raise SystemExit(f"left behind: {commands}")
    return code != 0


def _end(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def killed(
    folder: Path, overrides: list[str], kills: int, rng: random.Random, processes: int
) -> dict:
    """Run with ``kills`` SIGKILLs; says where they fell.

    A run that ends before all of them have fallen is begun anew.
    """
    places = {"before": 0, "between": 0, "saving": 0}
    while sum(places.values()) < kills:
        process = start(folder, overrides, rng.choice([1, 2, 3]), processes)
        before = newest(folder)
        aim_at_save = rng.random() < 0.6
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if newest(folder) > before and (not aim_at_save or saving(folder)):
                break
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02 if aim_at_save else 0.3))
        where = "saving" if saving(folder) else "between"
        if newest(folder) == before:
            where = "before"
        if process.poll() is not None:
            if process.returncode:
                raise SystemExit(f"it failed by itself: {folder.with_suffix('.log')}")
            shutil.rmtree(folder)
            continue
        if kill(process, processes, rng):
            places[where] += 1
        else:  # it was done before the signal came
            shutil.rmtree(folder)
    process = start(folder, overrides, 2, processes)
    if process.wait() != 0:
        raise SystemExit(f"the last try failed: see {folder.with_suffix('.log')}")
    log = folder.with_suffix(".log").read_text(errors="replace")
    return places | {"unreadable": log.count("cannot be read")}


def newest(folder: Path) -> int:
    """Step of the newest checkpoint, -1 where there is none."""
    where = folder / "checkpoints"
    names = os.listdir(where) if where.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def saving(folder: Path) -> bool:
    """Whether a checkpoint is being written at this moment."""
    where = folder / "checkpoints"
    return where.is_dir() and any("tmp" in name for name in os.listdir(where))


def same(folder: Path, other: Path) -> bool:
    """Whether two runs ended with the same state and records."""
    (meta, arrays), (meta2, arrays2) = map(last, (folder, other))
    bits = arrays.keys() == arrays2.keys() and all(
        x.tobytes() == arrays2[name].tobytes() for name, x in arrays.items()
    )
    return bits and meta["step"] == meta2["step"] and records(folder) == records(other)


def last(folder: Path) -> tuple[dict, dict]:
    """The newest checkpoint's facts and arrays."""
    with quiet():
        store = Store(folder / "checkpoints")
        step = store.steps()[0]
        meta = store.meta(step)
        wanted = {
            name: jax.ShapeDtypeStruct(shape, dtype)
            for name, (shape, dtype, *_) in meta["leaves"].items()
            if 0 not in shape
        }
        arrays = store.arrays(step, wanted)
        store.close()
    return meta, arrays


def records(folder: Path) -> list[dict]:
    """The records of a run without their times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(s).items() if k != "seconds"} for s in lines]


def main() -> None:
    """Print a line for each strategy; exit with 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10, help="of each strategy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="of a run")
    parser.add_argument("--samples", type=int, default=8_000, help="of each run")
    parser.add_argument("--only", nargs="*", choices=STRATEGIES, default=[*STRATEGIES])
    given = parser.parse_args()
    rng, bad = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory() as root:
        for name in given.only:
            overrides = [*STRATEGIES[name], f"samples={given.samples}"]
            whole, broken = Path(root, f"{name}-whole"), Path(root, f"{name}-killed")
            if start(whole, overrides, 10**6, given.processes).wait() != 0:
                raise SystemExit(whole.with_suffix(".log").read_text())
            places = killed(broken, overrides, given.kills, rng, given.processes)
            equal = same(whole, broken)
            bad += not equal or places["unreadable"] > 0
            told = ", ".join(f"{count} {place}" for place, count in places.items())
            print(f"{name}: {told}: {'equal' if equal else 'DIFFERENT'}", flush=True)
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
