"""Placements: which devices the W workers of a run are on.

A placement has D devices and L lanes on each, W = D * L:

=============  ======================================================================
``vmap``       all workers are lanes of one device
``shard_map``  D devices, ``W / D`` lanes on each
``pmap``       the same with the older API
``debug``      lanes of one device, not compiled: prints work, errors name the stage
``auto``       chooses by what was measured to be faster, and says why
=============  ======================================================================

What all workers share is stored once, as `parsgd.lanes` reads it from the program: for
256 simulated workers synchronous SGD keeps one copy of the parameters, one-bit SGD one
copy and 256 residuals, with no help from the algorithm.
"""

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from parsgd import cluster, cores
from parsgd.comm import DEVICES
from parsgd.errors import UserError, check_whole
from parsgd.words import counted

MOST_CPU_DEVICES = 1024  # not measured: beyond it, a mistake is likelier
KINDS = ("auto", "vmap", "shard_map", "pmap", "debug")
SCRIPT = " (in a script, devices)"  # how `fit` calls placement.devices


class Placement(NamedTuple):
    """W = ``len(devices) * lanes`` workers on chosen devices.

    Attributes:
        kind: ``"vmap"``, ``"shard_map"``, ``"pmap"`` or ``"debug"``.
        devices: JAX's devices, in the order of the workers.
        lanes: Workers on each.
        reason: Why it was chosen, in words.
    """

    kind: str
    devices: tuple[Any, ...]
    lanes: int
    reason: str = "as asked"

    @property
    def workers(self) -> int:
        """Number of workers W."""
        return len(self.devices) * self.lanes

    @property
    def processes(self) -> int:
        """How many processes the devices belong to."""
        return len({device.process_index for device in self.devices})

    @property
    def own_device(self) -> Any:
        """The first device that belongs to this process."""
        here = jax.process_index()
        return next(d for d in self.devices if d.process_index == here)

    @property
    def mesh(self) -> Mesh:
        """The chosen devices as a one-axis mesh."""
        return Mesh(np.array(self.devices), (DEVICES,))

    def describe(self) -> str:
        """One line for the start of a run."""
        devices = counted(len(self.devices), f"{self.devices[0].platform} device")
        if self.processes > 1:
            devices += f" of {self.processes} processes"
        return (
            f"{self.kind}: {counted(self.workers, 'worker')} = {devices} x "
            f"{counted(self.lanes, 'lane')} ({self.reason})"
        )


def want_cpu_devices(count: int) -> None:
    """Ask for ``count`` CPU devices, if JAX has not started its backends yet.

    On CPU, JAX makes devices out of one machine's cores; their number is fixed when the
    backend starts. Once it runs this does nothing: `place` then says what is missing.

    Raises:
        UserError: More than could ever be made.
    """
    if count > MOST_CPU_DEVICES:
        raise UserError(
            f"placement.devices{SCRIPT} asks for {count} devices: CPU devices are "
            f"threads of this machine, {MOST_CPU_DEVICES} at most. More workers than "
            "devices are lanes: leave it out"
        )
    try:
        if jax.config.jax_num_cpu_devices < count:  # type: ignore[attr-defined]
            jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return


def cpu_devices_of_each() -> int:
    """How many CPU devices each process makes by default, the same number in all.

    One for each core, or what ``XLA_FLAGS`` says; of several processes the fewest.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    asked = re.findall(r"--xla_force_host_platform_device_count=(\d+)", flags)
    own = int(asked[-1]) if asked else len(cores.usable())
    return min(map(int, cluster.exchange("CPU devices", str(own))))


def prepare(devices: int | Sequence[int] | None) -> None:
    """Make the CPU devices that this run or a later one may want.

    One for each core, or more if more are asked for. Call it before the backend starts.

    Args:
        devices: How many, or which, as in `place`.

    Raises:
        UserError: ``devices`` cannot be understood, or are more than could be made.
    """
    want_cpu_devices(max([cpu_devices_of_each(), *(i + 1 for i in _indices(devices))]))


def _indices(devices: int | Sequence[int] | None) -> list[int]:
    if devices is None:
        return []
    indices = list(range(devices)) if isinstance(devices, int) else list(devices)
    if not indices or min(indices) < 0 or len({*indices}) < len(indices):
        raise UserError(
            f"placement.devices={devices}{SCRIPT}: give how many devices (1 or more), "
            "or a list that names each device once, from 0 on"
        )
    return indices


def _available(devices: int | Sequence[int] | None) -> list[Any]:
    """This process's devices: all, so many, or those named."""
    found, indices = jax.local_devices(), _indices(devices)
    needed = max(indices, default=0) + 1
    if needed > len(found):
        one = ", or use placement=vmap, which needs one" * (jax.process_count() == 1)
        raise UserError(
            f"placement.devices={devices}{SCRIPT} needs {needed} devices, but JAX "
            f"has {len(found)} ({found[0].platform}). Ask for fewer"
            f"{one}. CPU devices are made when JAX starts: "
            f"call jax.config.update('jax_num_cpu_devices', {needed}) before the first "
            "use of JAX in this process (in a notebook: restart the kernel)."
        )
    return [found[i] for i in indices] or found


def _too_few(found: Sequence[Any], workers: int) -> str:
    """Why there are fewer CPU devices than these workers could use, if there are."""
    wanted = min(len(cores.usable()), cpu_devices_of_each())  # fewer by XLA_FLAGS
    most = _largest_divisor(workers, wanted)
    if found[0].platform != "cpu" or _largest_divisor(workers, len(found)) >= most:
        return ""
    return (
        f"; JAX had started with {counted(len(found), 'device')} before: set "
        "jax_num_cpu_devices before its first use for more"
    )


def _largest_divisor(number: int, limit: int) -> int:
    return max(d for d in range(1, min(number, limit) + 1) if number % d == 0)


def place(
    workers: int,
    *,
    kind: str = "auto",
    devices: int | Sequence[int] | None = None,
    identical: bool = False,
    spread: bool = False,
) -> Placement:
    """Decide where W workers run.

    Args:
        workers: W >= 1.
        kind: One of `KINDS`.
        devices: How many devices, or which (indices into ``jax.local_devices()``), of
            every process; None for one (vmap, debug) or as many as divide W (shard_map,
            pmap, auto).
        identical: Whether the workers' parameters stay equal in every step, as in
            all-reduced SGD; ``auto`` then shares one copy between all lanes.
        spread: Whether gradients take long beside what they send, as those of
            convolutions; ``auto`` then spreads identical workers of one process too.

    Returns:
        A `Placement`, whose ``reason`` tells why.

    Raises:
        UserError: Unknown kind, more devices than there are, or W workers that do not
            divide evenly over the devices.
    """
    if kind not in KINDS:
        raise UserError(f"placement={kind}: choose one of {', '.join(KINDS)}")
    check_whole("workers", workers)
    found = _available(devices)
    if jax.process_count() > 1:
        return _over_processes(workers, kind, devices, found, identical)
    if kind in ("vmap", "debug"):
        if devices is not None and len(found) > 1:
            raise UserError(
                f"placement={kind} uses one device, placement.devices={devices}"
                f"{SCRIPT} names {len(found)}: use placement=shard_map, or name one"
            )
        return Placement(kind, (found[0],), workers)
    if devices is not None:
        count, reason = len(found), "devices as asked"
        if workers % count:
            below = workers // count * count
            near = f"{below} or {below + count}" if below else f"{count}"
            raise UserError(
                f"{counted(workers, 'worker')} cannot be spread evenly over "
                f"{counted(count, 'device')}: use workers={near}, or "
                f"placement.devices={_largest_divisor(workers, count)}{SCRIPT}, or "
                "placement=vmap"
            )
    elif kind != "auto":
        count = _largest_divisor(workers, len(found))
        reason = f"as asked{_too_few(found, workers)}"
    elif found[0].platform == "cpu":
        if identical and not spread:
            count, reason = 1, "workers stay equal: one copy, one device"
        else:
            usable = min(len(found), len(cores.usable()))
            count = _largest_divisor(workers, usable)
            on = counted(count, "core")
            if count < usable < workers:
                on += f", as {workers} do not divide over {usable}"
            on += _too_few(found, workers)
            why = "long gradients" if identical else "workers differ between rounds"
            reason = f"{why}: spread over {on}"
    else:
        count = _largest_divisor(workers, len(found))
        reason = counted(len(found), "accelerator")
    chosen = ("vmap" if count == 1 else "shard_map") if kind == "auto" else kind
    return Placement(chosen, tuple(found[:count]), workers // count, reason)


def _over_processes(
    workers: int, kind: str, devices: Any, found: Sequence[Any], identical: bool
) -> Placement:
    """W workers over equally many devices of every process, in the processes' order."""
    count = jax.process_count()
    if kind not in ("auto", "shard_map"):
        raise UserError(
            f"placement={kind} is for one process, and there are {count}: use "
            "placement=auto or shard_map"
        )
    if workers % count:
        below = workers // count * count
        raise UserError(
            f"{counted(workers, 'worker')} cannot be spread evenly over {count} "
            f"processes: use workers={f'{below} or ' if below else ''}{below + count}, "
            f"or start {counted(_largest_divisor(workers, count), 'process')}"
        )
    each = workers // count
    there = [sum(d.process_index == i for d in jax.devices()) for i in range(count)]
    if len({*there}) > 1:
        raise UserError(
            f"the processes have {', '.join(map(str, there))} devices, and each must "
            "have as many: show each the same number of GPUs (CUDA_VISIBLE_DEVICES), "
            "on CPU leave JAX_NUM_CPU_DEVICES out or set it alike"
        )
    if devices is not None:
        own, reason = len(found), "devices as asked"
        if each % own:
            raise UserError(
                f"{counted(each, 'worker')} of each process cannot be spread evenly "
                f"over its {counted(own, 'device')}: use placement.devices="
                f"{_largest_divisor(each, own)}{SCRIPT}, or another number of workers"
            )
    elif kind == "shard_map":
        own, reason = _largest_divisor(each, len(found)), "as asked"
    elif found[0].platform != "cpu":
        own, reason = _largest_divisor(each, len(found)), "the processes' accelerators"
    elif identical:
        own, reason = 1, "workers stay equal: one device of each process"
    else:
        usable = max(1, len(cores.usable()) // cluster.sharing_cores())
        own, reason = _largest_divisor(each, min(usable, len(found))), ""
    own = min(cluster.exchange("devices", str(own)), key=int)
    reason = reason or f"spread over {counted(int(own), 'core')} of each process"
    chosen = []
    for process in range(count):
        theirs = [d for d in jax.devices() if d.process_index == process]
        if devices is None or isinstance(devices, int):
            chosen += theirs[: int(own)]
        else:
            chosen += [theirs[i] for i in devices]
    return Placement("shard_map", tuple(chosen), workers // len(chosen), reason)
