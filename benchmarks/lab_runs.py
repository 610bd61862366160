"""The measurements of the network lab: what is run, and what is read of it."""

import argparse
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.measure import BUSY, commit
from parsgd.lab import network

ROOT = Path(__file__).parent.parent
BATCH, LR, LOCAL_STEPS = 32, 0.1, 16
PATIENCE = 900  # seconds for one run


class Network(NamedTuple):
    """A model: its names here and in the PyTorch benchmark, and a step alone."""

    parameters: int  # on images of 28 x 28 pixels
    peer: str
    seconds: float  # about, to choose the length of windows


class Method(NamedTuple):
    """What is compared: overrides of `parsgd train`, or a hook of DDP."""

    overrides: tuple[str, ...]
    hook: str | None = None
    size: float = 1.0  # about, of what it sends, beside the parameters
    local_steps: int = 1


MODELS = {
    "mlp_258k": Network(242_752, "mlp_258k", 1e-3),
    "mlp_6_9m": Network(2_774_784, "mlp_6_9m", 10e-3),
}
OWN_FOLDER = "hydra.run.dir=${oc.env:LAB_FOLDER}/${oc.env:PARSGD_PROCESS}"
METHODS = {
    "alone": Method(("strategy=single", "cluster=none", OWN_FOLDER), size=0.0),
    # One worker with local steps: what they compute is another program.
    "alone, local": Method(
        ("strategy=local_sgd", "cluster=none", OWN_FOLDER), None, 0.0, LOCAL_STEPS
    ),
    "sync_sgd": Method(("strategy=sync_sgd",)),
    "one_bit_sgd": Method(("strategy=one_bit_sgd",), size=1 / 30),
    "top_k_sgd": Method(("strategy=top_k_sgd",), size=1 / 60),
    "power_sgd": Method(("strategy=power_sgd",), size=1 / 60),
    "local_sgd": Method(("strategy=local_sgd",), None, 1.0, LOCAL_STEPS),
    "block_momentum": Method(("strategy=block_momentum",), None, 1.0, LOCAL_STEPS),
    "DDP alone": Method((), "alone", size=0.0),
    "DDP": Method((), "none"),
    "DDP, fp16": Method((), "fp16", size=0.5),
    "DDP, PowerSGD": Method((), "powersgd", size=1 / 60),
}


class Cell(NamedTuple):
    """One measurement; ``link`` is ``steps`` where steps to the target are counted."""

    model: str
    processes: int
    link: str
    method: str
    seed: int = 0

    @property
    def name(self) -> str:
        """As it is listed, chosen with ``--only`` and stored."""
        name = f"{self.model}/w{self.processes}/{self.link}/{self.method}"
        return f"{name}/{self.seed}" if self.link == "steps" else name


def speed(cell: Cell, options: argparse.Namespace) -> dict:
    """Seconds per step of each window."""
    steps = window_steps(cell, options)
    method = METHODS[cell.method]
    with tempfile.TemporaryDirectory() as folder:
        lab = ["--processes", cell.processes, "--link", cell.link, *_pin(options)]
        lab += ["--output", f"{folder}/lab.json"]
        if method.hook:
            _lab(lab, _peer(cell, options, steps, options.windows, folder), folder)
            return json.loads((Path(folder) / "ddp.json").read_text())
        count = steps // method.local_steps
        own = (
            f"rounds={count * (options.windows + 1)}",
            f"evaluations={options.windows + 1}",
            "train_examples=100",
        )
        _lab(lab, _train(cell, options, own, folder), folder)
        seconds = []
        for file in sorted(Path(folder).glob("*/metrics.jsonl")):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            # The first interval has the first dispatches, which look for their pace.
            pairs = itertools.pairwise(lines[1:])
            seconds.append(
                [
                    (b["seconds"] - a["seconds"]) / (b["step"] - a["step"])
                    for a, b in pairs
                ]
            )
        # Of processes that train alone the mean, for they share the cores.
        means = [sum(window) / len(window) for window in zip(*seconds, strict=True)]
        result: dict = {"seconds": means}
        training = json.loads((Path(folder) / "lab.json").read_text())["training"]
        one = training[0][0] if training else {"rounds": 0}
        if one["rounds"] and "alone" not in cell.method:
            done = one["rounds"] * method.local_steps
            result["sent"] = one["sent"] / done
            result["counted"] = one["counted"] / done
        return result


def window_steps(cell: Cell, options: argparse.Namespace) -> int:
    """Steps that take about as long as a window should, in whole rounds."""
    model, method = MODELS[cell.model], METHODS[cell.method]
    sent = 8 * model.parameters * method.size / method.local_steps
    link = network.parse(cell.link)
    sharing = max(1.0, cell.processes / len(os.sched_getaffinity(0)))
    step = model.seconds * sharing + link.seconds(sent)
    rounds = max(1, math.ceil(options.seconds / step / method.local_steps))
    return rounds * method.local_steps


def steps_to_target(cell: Cell, options: argparse.Namespace) -> dict:
    """How many steps of each worker reach the target, at evaluations four an epoch."""
    per_epoch = 60_000 // (BATCH * cell.processes)
    every = max(LOCAL_STEPS, per_epoch // 4 // LOCAL_STEPS * LOCAL_STEPS)
    most = max(1, round(options.epochs * per_epoch / every))
    with tempfile.TemporaryDirectory() as folder:
        if METHODS[cell.method].hook:
            lab = ["--processes", cell.processes, *_pin(options)]
            words = _peer(cell, options, every, most, folder)
            words += ["--target", options.target, "--seed", cell.seed]
            _lab(lab, words, folder)
            return json.loads((Path(folder) / "ddp.json").read_text())
        # The same algorithm whether its workers are processes or simulated.
        own = (
            f"rounds={most * every // METHODS[cell.method].local_steps}",
            f"evaluations={most}",
            f"target_accuracy={options.target}",
            f"seed={cell.seed}",
            "train_examples=100",
        )
        words = [sys.executable, "-m", "parsgd.cli"]
        _run([*words, *_train(cell, options, own, folder)], folder)
        result = json.loads((Path(folder) / "0" / "result.json").read_text())
        reached = result["summary"]["stopped"] == "target_accuracy"
        final = result["final"]
        steps = final["step"] if reached else None
        return {"steps": steps, "accuracy": final["test_accuracy"]}


def _train(cell: Cell, options: argparse.Namespace, own: tuple, folder: str) -> list:
    method = METHODS[cell.method]
    alone = "alone" in cell.method
    words = ["train", "task=fashion_mnist", f"task/model={cell.model}"]
    words += [f"workers={1 if alone else cell.processes}", f"worker_batch={BATCH}"]
    words += [*method.overrides, f"optimizer.learning_rate={LR}", *own]
    if method.local_steps > 1:
        words.append(f"local_steps={method.local_steps}")
    return words if alone else [*words, f"hydra.run.dir={folder}/0"]


def _peer(
    cell: Cell, options: argparse.Namespace, steps: int, windows: int, folder: str
) -> list:
    hook = METHODS[cell.method].hook
    words = [ROOT / "benchmarks" / "lab_ddp.py", "--model", MODELS[cell.model].peer]
    words += ["--hook", hook, "--batch", BATCH, "--lr", LR, "--steps", steps]
    return [*words, "--windows", windows, "--output", f"{folder}/ddp.json"]


def _pin(options: argparse.Namespace) -> list[str]:
    return [] if options.free else ["--pin"]


def _lab(options: list, words: list, folder: str) -> None:
    _run([sys.executable, "-m", "parsgd.cli", "lab", *options, "--", *words], folder)


def _run(command: list, folder: str) -> None:
    more = {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        [str(word) for word in command],
        env=os.environ | more | {"LAB_FOLDER": folder},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = run.communicate(timeout=PATIENCE)[1]
    except subprocess.TimeoutExpired as error:
        run.terminate()  # it takes its links down
        run.communicate()
        raise RuntimeError(f"not done after {PATIENCE} s") from error
    if run.returncode:
        raise RuntimeError("\n".join(said.strip().splitlines()[-6:]))


def disturbance(work: Callable[[], dict]) -> tuple[dict, float]:
    """A measurement, and what share of the machine others took meanwhile."""

    def busy() -> float:
        # The kernel's work for the links is nobody's own.
        times = psutil.cpu_times()
        return times.user + times.nice + times.system + getattr(times, "steal", 0.0)

    def own() -> float:
        uses = [resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN]
        return sum(sum(resource.getrusage(use)[:2]) for use in uses)

    start, before, mine = time.monotonic(), busy(), own()
    result = work()
    others = busy() - before - (own() - mine)
    seconds = time.monotonic() - start
    return result, max(0.0, others) / seconds / len(os.sched_getaffinity(0))


def measured(cell: Cell, options: argparse.Namespace) -> dict:
    """The least disturbed of up to ``1 + patience`` measurements, or the error."""
    work = steps_to_target if cell.link == "steps" else speed
    taken = []
    while len(taken) <= options.patience:
        try:
            result, others = disturbance(lambda: work(cell, options))
        except RuntimeError as error:
            if taken:
                break
            return cell._asdict() | {"error": str(error)}
        when = {"disturbed": others, "date": time.strftime("%Y-%m-%d")}
        taken.append(cell._asdict() | result | when | {"commit": commit()})
        if others <= BUSY or cell.link == "steps":
            break
    return min(taken, key=lambda result: result["disturbed"])
