"""Versions and machine, so that a number can carry where it was measured."""

import functools
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from parsgd import cores

LINK = "PARSGD_LINK"
PACKAGES = ("parsgd", "jax", "jaxlib", "flax", "optax", "numpy")


def versions() -> dict[str, str | None]:
    """Versions of what a result depends on; null for what is not installed.

    They are read from package metadata, and the commit by git, so nothing is imported
    and no backend starts.

    Example:
        >>> sorted(versions())
        ['commit', 'flax', 'jax', 'jaxlib', 'numpy', 'optax', 'parsgd', 'python']
    """
    found: dict[str, str | None] = {name: _version(name) for name in PACKAGES}
    return found | {"python": platform.python_version(), "commit": _commit()}


def machine(devices: Iterable[object] = ()) -> dict[str, Any]:
    """The machine in words: processor, usable cores, memory, platform, devices.

    Args:
        devices: The devices that the job used, for example ``jax.devices()``. They are
            passed in because asking jax for them here would start a backend.

    Example:
        >>> machine(devices=["cpu:0"])["devices"]
        ['cpu:0']
    """
    return {
        "cpu": _cpu_name(),
        "cores": len(cores.usable()),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
        "devices": [str(device) for device in devices],
    }


def link() -> str | None:
    """What the processes' network is called: by ``PARSGD_LINK``, as in `parsgd lab`."""
    return os.environ.get(LINK) or None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def _commit() -> str | None:
    """Of the checkout that the package runs from, with a mark where files differ."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return None
    command = ("git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*")
    # A hook of another repository has that one's.
    own = {key: x for key, x in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True, env=own
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"
