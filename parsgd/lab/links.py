"""Machines on one machine: network namespaces, joined by links of a given speed.

Each process gets a namespace with one interface, ``eth0``. Its other end is a port of a
bridge that stands in one more namespace, the hub, so that nothing of it touches the
machine's own network, and two labs never meet. Both ends of a link are token buckets
(``tc-tbf``), so that it is as slow in either direction.
"""

import contextlib
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from parsgd.errors import UserError
from parsgd.lab.counters import FILES, Counters
from parsgd.lab.ending import first_signal
from parsgd.lab.network import Link

NAMESPACES = Path("/run/netns")
ETC = Path("/etc/netns")
DEVICE = "eth0"
PACKET = 1514  # bytes of the largest, with its Ethernet header
LEAST = 2 * PACKET + 64  # of a bucket: two packets, and what tc rounds off
TICK = 1e-6  # seconds: tc keeps buckets as times, in whole ones of these
# A bucket holds what the link carries in this time. With half of it a link of 1 Gbit/s
# lost 7 % of its rate to timers that come late.
BURST_SECONDS = 1e-3
# While a program computes the bucket fills, and short messages would pass at once. So
# it is emptied at this multiple of the rate, but for what the link carries in a shorter
# time. With 1.05 a link of 1 Gbit/s lost 3 to 14 % of its rate, with 1.15 up to 4 %.
PEAK = 1.2
PEAK_SECONDS = 0.15e-3
MOST_AT_ONCE = 43  # packets that the kernel handles as one of 64 KiB
QUEUE = "50ms"
# Of those that every namespace may choose. The machine's own choice may be one that
# guesses the rate, badly so for short messages.
CONGESTION = "reno"
INSTEAD = "`parsgd launch` starts processes without slow links"
GONE_SECONDS = 2.0  # until what another lab removes is gone


class Network(NamedTuple):
    """Namespaces of one lab.

    Attributes:
        spaces: Names of the namespaces, one per process.
        addresses: Their addresses.
        hub: The namespace of the bridge.
    """

    spaces: tuple[str, ...]
    addresses: tuple[str, ...]
    hub: str


def missing() -> str | None:
    """Why this machine cannot have a lab, and what to do; None if it can."""
    if sys.platform != "linux":
        return f"it needs Linux and its network namespaces: {INSTEAD}"
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            return f"there is no {tool} here: install iproute2; {INSTEAD}"
    if os.geteuid() != 0:
        return f"network namespaces are made by root only: use sudo; {INSTEAD}"
    return None


@contextlib.contextmanager
def network(processes: int, link: Link) -> Iterator[Network]:
    """Namespaces that exist while the context lasts.

    Args:
        processes: How many.
        link: Of each to the bridge between them.

    Raises:
        UserError: This machine cannot have them.
    """
    if reason := missing():
        raise UserError(f"parsgd lab does not work here: {reason}")
    if processes > 250:
        raise UserError(f"--processes {processes}: a lab has 250 at most")
    remove_leftovers()
    prefix = f"parsgd-{os.getpid()}-{_birth(os.getpid())}"
    made = Network(
        tuple(f"{prefix}-{i}" for i in range(processes)),
        tuple(f"10.77.0.{i + 1}" for i in range(processes)),
        f"{prefix}-hub",
    )
    # One by one, so that none is left behind where the removal of another fails.
    removal = contextlib.ExitStack()
    for space in (made.hub, *made.spaces):
        removal.callback(_remove, space)
    with first_signal() as signals, removal:
        for _ in _build(made, link):
            signals.act()
        try:
            signals.waits = False
            signals.act()
            yield made
        finally:
            signals.waits = True


def inside(space: str, command: Sequence[str]) -> list[str]:
    """The command that runs ``command`` in a namespace."""
    return ["ip", "netns", "exec", space, *command]


def counters(space: str) -> Counters:
    """What a namespace's interface has carried so far."""
    files = [name.format(device=DEVICE) for name in FILES]
    out = _run(inside(space, ["cat", *files]))
    return Counters(*map(int, out.split()))


def remove_leftovers() -> list[str]:
    """Remove the namespaces of labs that were killed; returns their names."""
    found = [path.name for folder in (NAMESPACES, ETC) for path in _in(folder)]
    left = []
    for name in dict.fromkeys(found):
        match = re.fullmatch(r"parsgd-(\d+)-(\d+)-(?:\d+|hub)", name)
        # The same number may be another process by now, which was born later.
        if match and _birth(int(match[1])) != match[2]:
            _remove(name)
            left.append(name)
    return left


def _in(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _birth(pid: int) -> str | None:
    """When a process was started, in the kernel's ticks; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]


def _build(made: Network, link: Link) -> Iterator[None]:
    """Make the namespaces; comes back after each."""
    _run(["ip", "netns", "add", made.hub])
    hub = ["ip", "-n", made.hub]
    _run([*hub, "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0"])
    _run([*hub, "link", "set", "bridge", "up"])
    yield
    for i, (space, address) in enumerate(zip(made.spaces, made.addresses, strict=True)):
        port, own = f"port{i}", ["ip", "-n", space]
        _run(["ip", "netns", "add", space])
        _write_hosts(space, address)
        pair = ["peer", "name", port, "netns", made.hub]
        _run([*own, "link", "add", DEVICE, "type", "veth", *pair])
        _run([*hub, "link", "set", port, "master", "bridge"])
        for side, device in ((own, DEVICE), (hub, port)):
            # No addresses of its own making: they would send packets of their own.
            _run([*side, "link", "set", device, "addrgenmode", "none"])
            _run([*side, "link", "set", device, "up"])
        _run([*own, "address", "add", f"{address}/24", "dev", DEVICE])
        _run([*own, "link", "set", "lo", "up"])
        _choose_congestion_control(space)
        _slow(space, DEVICE, link)
        _slow(made.hub, port, link._replace(latency=0.0))
        yield


def _slow(space: str, device: str, link: Link) -> None:
    tc = ["tc", "-n", space, "qdisc", "add", "dev", device]
    parent = ["root"]
    if math.isfinite(link.rate):
        sizes = [BURST_SECONDS, PEAK_SECONDS]
        burst, mtu = (round(max(LEAST, link.rate / 8 * size)) for size in sizes)
        # What is longer than a bucket would be cut there, and come out of order.
        least = min(burst, mtu) - PEAK * link.rate / 8 * TICK
        together = min(int(least // PACKET), MOST_AT_ONCE)
        link_set = ["ip", "-n", space, "link", "set", device]
        _run([*link_set, "gso_max_segs", str(together)])
        rate = ["rate", f"{link.rate:.0f}bit", "burst", str(burst), "latency", QUEUE]
        rate += ["peakrate", f"{PEAK * link.rate:.0f}bit", "mtu", str(mtu)]
        _run([*tc, *parent, "handle", "1:", "tbf", *rate])
        parent = ["parent", "1:1"]
    if link.latency:
        # Room for all that is on its way.
        limit = ["limit", "1000000"]
        delay = ["netem", "delay", f"{1e6 * link.latency:.0f}us", *limit]
        try:
            _run([*tc, *parent, *delay])
        except UserError as error:
            raise UserError(
                f"this kernel cannot delay packets ({error}): it has no netem, so "
                "leave the latency out of --link"
            ) from error


def _choose_congestion_control(space: str) -> None:
    setting = "/proc/sys/net/ipv4/tcp_congestion_control"
    _run(inside(space, ["sh", "-c", f"echo {CONGESTION} > {setting}"]))


def _write_hosts(space: str, address: str) -> None:
    """Processes tell each other the address that the machine's own name has."""
    folder = ETC / space
    while not folder.exists():
        # Another lab that ends removes the folder above it, where that is empty.
        with contextlib.suppress(FileNotFoundError):
            folder.mkdir(parents=True)
    hosts = f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n"
    (folder / "hosts").write_text(hosts)


def _remove(space: str) -> None:
    """Remove a namespace with all that is in it, as far as it was made."""
    end = time.monotonic() + GONE_SECONDS
    while (NAMESPACES / space).exists():
        try:
            for pid in _run(["ip", "netns", "pids", space]).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            _run(["ip", "netns", "delete", space])
        except UserError:
            # Another lab may be about to remove the same leftover.
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
    shutil.rmtree(ETC / space, ignore_errors=True)
    with contextlib.suppress(OSError):  # there may be others
        ETC.rmdir()


def _run(command: Sequence[str]) -> str:
    # A process group of its own: Ctrl-C must not end it half way.
    done = subprocess.run(
        command, capture_output=True, text=True, start_new_session=True
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        if said.endswith(("not permitted", "Permission denied")):
            said += (
                ". This root may not do it, as in most containers: start the container "
                f"with --privileged, or use the machine itself; {INSTEAD}"
            )
        raise UserError(f"`{' '.join(command)}` failed: {said}")
    return done.stdout
