"""Throughput of competing candidates, in interleaved windows of the same run.

A candidate's ``setup()`` runs once in a process with exactly the CPU devices that it
needs (JAX fixes their number for a process, and unused ones cost speed) and returns
``step() -> samples``, one blocking timed window of the same work each time. All
candidates of a cell take turns, so that drifts of the machine hit all of them, and
windows in which other programs took part of the machine are taken again.
"""

import multiprocessing
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import psutil

HERE = Path(__file__).parent
BUSY = 0.05  # share of the machine that others may take in a window
PAUSE = 0.5  # seconds before a disturbed window is taken again


class Candidate(NamedTuple):
    """One way to do a cell's work; picklable, for it is set up in another process."""

    name: str
    setup: Callable[[], Callable[[], int]]
    devices: int = 1  # CPU devices of its process; 0: a process without JAX


class Window(NamedTuple):
    """One timed window."""

    samples: int
    seconds: float
    disturbed: float  # share of the machine that other programs took


class Result(NamedTuple):
    """The windows of a candidate."""

    name: str
    devices: int
    windows: list[Window]  # one per round
    error: str | None

    @property
    def rates(self) -> list[float]:
        """Samples/s of each window."""
        return [window.samples / window.seconds for window in self.windows]

    @property
    def disturbed(self) -> int:
        """How many windows other programs disturbed in spite of all patience."""
        return sum(window.disturbed > BUSY for window in self.windows)

    @property
    def median(self) -> float | None:
        """The median rate, or None when the candidate failed."""
        return statistics.median(self.rates) if self.windows else None


class _Process:
    """A process that sets candidates up and runs their windows on demand."""

    def __init__(self, devices: int):
        context = multiprocessing.get_context("spawn")
        self.pipe, remote = context.Pipe()
        self.process = context.Process(target=_serve, args=(remote, devices))
        self.process.start()

    def ask(self, *message):
        self.pipe.send(message)
        return self.pipe.recv()

    def close(self):
        self.pipe.send(None)
        self.process.join()


def _serve(pipe, devices: int) -> None:
    if devices:
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices)
    steps = {}
    while (message := pipe.recv()) is not None:
        kind, name, setup = message
        try:
            if kind == "setup":
                steps[name] = setup()
                steps[name]()
                pipe.send(None)
            else:
                start = time.perf_counter()
                samples = steps[name]()
                pipe.send((samples, time.perf_counter() - start))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}".splitlines()[0])


def compare(
    candidates: Sequence[Candidate], *, repeats: int, patience: int = 3
) -> list[Result]:
    """Rates of all candidates, over ``repeats`` rounds in which each has one window.

    Args:
      candidates: ways to do the same work.
      repeats: windows of each.
      patience: how often a window that other programs disturbed is taken again.
    """
    processes = {n: _Process(n) for n in {c.devices for c in candidates}}
    try:
        errors = {
            c.name: processes[c.devices].ask("setup", c.name, c.setup)
            for c in candidates
        }
        windows = {c.name: [] for c in candidates if errors[c.name] is None}
        running = [c for c in candidates if c.name in windows]
        for repeat in range(repeats):
            # Alternate the direction: no candidate always runs after the same one.
            for candidate in running if repeat % 2 == 0 else reversed(running):
                process = processes[candidate.devices]
                windows[candidate.name].append(
                    _window(process, candidate.name, patience)
                )
    finally:
        for process in processes.values():
            process.close()
    return [
        Result(c.name, c.devices, windows.get(c.name, []), errors[c.name])
        for c in candidates
    ]


def _window(process: _Process, name: str, patience: int) -> Window:
    """The least disturbed of up to ``1 + patience`` windows."""
    taken = [_timed(process, name)]
    while taken[-1].disturbed > BUSY and len(taken) <= patience:
        time.sleep(PAUSE)
        taken.append(_timed(process, name))
    return min(taken, key=lambda window: window.disturbed)


def _timed(process: _Process, name: str) -> Window:
    busy, own = _busy(), _own()
    answer = process.ask("step", name, None)
    if isinstance(answer, str):
        raise RuntimeError(f"{name}: {answer}")
    samples, seconds = answer
    others = (_busy() - busy) - (_own() - own)
    return Window(samples, seconds, max(0.0, others) / seconds / _cores())


def _busy() -> float:
    """CPU seconds of all programs since boot."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0)


def _own() -> float:
    """CPU seconds of this process and those under it."""
    me = psutil.Process()
    times = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def repeated(dispatch: Callable[[], int], *, seconds: float) -> Callable[[], int]:
    """A window of about ``seconds`` made of as many blocking dispatches as fit."""
    dispatch()
    start = time.perf_counter()
    dispatch()
    times = max(1, round(seconds / (time.perf_counter() - start)))
    return lambda: sum(dispatch() for _ in range(times))


def ratio(result: Result, reference: Result) -> float | None:
    """The median of the ratios within each round of windows."""
    pairs = list(zip(result.rates, reference.rates, strict=False))
    return statistics.median(a / b for a, b in pairs) if pairs else None


def best(results: Sequence[Result]) -> Result:
    """The candidate with the highest median."""
    return max(results, key=lambda result: result.median or 0)


def table(results: Sequence[Result]) -> str:
    """A Markdown table, fastest first: medians, spread and ratio to the fastest."""
    head = "| candidate | devices | samples/s | range | n | of the best |"
    lines = [head, "|---|---|---|---|---|---|"]
    reference = best(results)
    for result in sorted(results, key=lambda r: -(r.median or 0)):
        lines.append(
            f"| {result.name} | {result.devices} | {_cells(result, reference)}"
        )
    return "\n".join(lines)


def _cells(result: Result, reference: Result) -> str:
    if result.median is None:
        return f"failed: {result.error} | | 0 | |"
    mark = f" ({result.disturbed} disturbed)" if result.disturbed else ""
    spread = f"{min(result.rates):,.0f}-{max(result.rates):,.0f}"
    n, share = f"{len(result.rates)}{mark}", ratio(result, reference)
    return f"{result.median:,.0f} | {spread} | {n} | {share:.2f} |"


def record(results: Sequence[Result]) -> list[dict]:
    """The same for a JSON file, with every window."""
    return [
        {
            "name": result.name,
            "devices": result.devices,
            "median": result.median,
            "rates": result.rates,
            "disturbed": [window.disturbed for window in result.windows],
            "error": result.error,
        }
        for result in results
    ]


def commit() -> str | None:
    """The commit that is checked out, with a plus if files differ; None without git."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return found.stdout.strip() or None


def machine() -> dict:
    """What the figures were taken on, and with which versions."""
    packages = ("jax", "jaxlib", "numpy")
    return {
        "cpu": _cpu(),
        "cores": _cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "date": time.strftime("%Y-%m-%d"),
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _cpu() -> str:
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor()
