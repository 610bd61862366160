"""`parsgd lab`: links that are there while a run is, as slow as they should be."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from needs_links import needs_links
from processes import alive

from parsgd.errors import UserError
from parsgd.lab import links, network
from parsgd.lab.counters import Counters
from parsgd.lab.network import Link


@pytest.fixture
def start(tmp_path):
    """Starts `parsgd lab` with a script; whatever still runs is ended."""
    started = []

    def begin(script, *options):
        (tmp_path / "script.py").write_text(script)
        command = [sys.executable, "-m", "parsgd.cli", "lab", *options, "--"]
        process = subprocess.Popen(
            [*command, "script.py"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        if not process.stdout.closed:
            process.communicate()
    links.remove_leftovers()


def spaces_of(process):
    """The namespaces that a lab has."""
    pattern = f"parsgd-{process.pid}-*"
    found = [*links.NAMESPACES.glob(pattern), *links.ETC.glob(pattern)]
    return sorted({path.name for path in found})


WHERE = """\
import os, socket
print(*sorted(os.listdir("/sys/class/net")), end=" ")
print(socket.gethostbyname(socket.gethostname()))
"""
WAIT = "import os, time; print('pid', os.getpid()); time.sleep(100)"


@needs_links
def test_each_process_has_one_interface_and_the_hosts_name(start):
    process = start(WHERE, "--processes", "3", "--link", "100mbit")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    lines = out.splitlines()
    for i in range(3):
        mark = f"[{i}] " if i else ""
        # Tunnels of the kernel may be in every namespace.
        assert any(
            re.fullmatch(
                rf"{re.escape(mark)}.*\beth0\b.*\blo\b.* 10\.77\.0\.{i + 1}", s
            )
            for s in lines
        ), out
    assert "3 links of 100 Mbit/s each way" in lines
    assert not spaces_of(process)


@needs_links
@pytest.mark.parametrize(
    "link", [Link(100e6), Link(2422.4e6), Link(10e9), Link(math.inf)]
)
def test_both_ends_of_each_link_are_slow(link):
    with links.network(3, link) as made:
        ends = [(space, "eth0") for space in made.spaces]
        ends += [(made.hub, f"port{i}") for i in range(3)]
        for space, device in ends:
            show = ["tc", "-n", space, "-j", "qdisc", "show", "dev", device]
            (queue,) = json.loads(subprocess.check_output(show))
            if link.rate == math.inf:
                assert queue["kind"] == "noqueue"
            else:
                assert queue["kind"] == "tbf"
                assert queue["options"]["rate"] == link.rate / 8
                most = links.BURST_SECONDS * link.rate / 8
                assert queue["options"]["burst"] <= max(most, links.LEAST) + 1
                most = links.PEAK_SECONDS * link.rate / 8
                assert queue["options"]["minburst"] <= max(most, links.LEAST) + 1
            about = ["ip", "-n", space, "-d", "-j", "link", "show", "dev", device]
            (about,) = json.loads(subprocess.check_output(about))
            if link.rate < math.inf:  # none is cut
                longest = about["gso_max_segs"] * links.PACKET
                sizes = (queue["options"][name] for name in ("burst", "minburst"))
                assert longest <= min(sizes)
    assert not [*links.NAMESPACES.glob(f"parsgd-{os.getpid()}-*")]


AFTER_PAUSES = """\
import os, socket, struct, time
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # not to wait for others
except OSError:
    pass
host, _, port = os.environ["PARSGD_COORDINATOR"].partition(":")
size, clock = {size}, time.monotonic  # which all namespaces share
if os.environ["PARSGD_PROCESS"] == "0":
    with socket.create_server((host, int(port))) as server:
        other, _ = server.accept()
    took = []
    for _ in range(40):
        message = other.recv(size, socket.MSG_WAITALL)
        took.append(clock() - struct.unpack("d", message[:8])[0])
        other.sendall(b"x")
    print(sorted(took)[20])
else:
    while True:
        try:
            other = socket.create_connection((host, int(port)))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    for _ in range(40):
        time.sleep(0.003)
        other.sendall(struct.pack("d", clock()) + bytes(size - 8))
        other.recv(1)
"""


@needs_links
@pytest.mark.parametrize("link, size", [("100mbit", 8_000), ("1gbit", 64_000)])
def test_a_short_message_meets_the_link_after_a_pause(start, link, size):
    process = start(AFTER_PAUSES.replace("{size}", str(size)), "--link", link)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    # Two packets and more pass at once; the rest does not.
    assert float(out.split()[0]) > 0.6 * network.parse(link).seconds(size)


@needs_links
def test_a_latency_is_made_or_refused():
    try:
        with links.network(2, Link(100e6, 0.03)) as made:
            show = ["tc", "-n", made.spaces[1], "qdisc", "show", "dev", "eth0"]
            assert b"delay 30ms" in subprocess.check_output(show)
    except UserError as error:
        assert "it has no netem, so leave the latency out" in str(error)
    assert not [*links.NAMESPACES.glob(f"parsgd-{os.getpid()}-*")]


SEND = """\
import os, socket
host, _, port = os.environ["PARSGD_COORDINATOR"].partition(":")
if os.environ["PARSGD_PROCESS"] == "0":
    with socket.create_server((host, int(port))) as server:
        other, _ = server.accept()
        while other.recv(1 << 16):
            pass
else:
    while True:
        try:
            other = socket.create_connection((host, int(port)))
            break
        except ConnectionRefusedError:
            pass
    other.sendall(bytes(1_000_000))
    other.close()
"""


@needs_links
def test_counters_are_those_of_the_link(start, tmp_path):
    process = start(SEND, "--link", "1gbit", "--output", "lab.json")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    result = json.loads((tmp_path / "lab.json").read_text())
    receiver, sender = (Counters(**counts) for counts in result["whole_run"])
    # Not all packets are TCP's, those of its handshake have longer headers, and some
    # are sent again.
    assert 999_500 < sender.payload < 1_050_000
    assert 1_000_000 < receiver.received < 1_150_000
    # Its answers, one for each packet that comes or for several.
    assert 0 < receiver.sent < 80 * receiver.packets_received
    assert result["rate"] == 1e9
    assert result["training"] == []


@needs_links
@pytest.mark.parametrize(
    "end, code",
    [
        ("raise SystemExit(3)", 3),
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
    ],
)
def test_links_are_removed_however_it_ends(start, end, code):
    script = WAIT
    if isinstance(end, str):
        script = f"import os\nif os.environ['PARSGD_PROCESS'] == '1':\n  {end}\n{WAIT}"
    process = start(script)
    if not isinstance(end, str):
        assert process.stdout.readline()
        assert len(spaces_of(process)) == 3
        process.send_signal(end)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert not spaces_of(process)


@needs_links
def test_links_are_removed_where_a_signal_comes_while_they_are_made(start):
    process = start(WAIT, "--processes", "100")
    while not spaces_of(process):
        time.sleep(0.01)
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "pid" not in out
    assert not spaces_of(process)


@needs_links
def test_leftovers_of_a_killed_lab_are_removed_and_no_others(start):
    killed, living = start(WAIT), start(WAIT)
    pids = []
    for process in (killed, living):
        pids += re.findall(r"pid (\d+)", process.stdout.readline())
    killed.kill()
    killed.communicate()
    left = spaces_of(killed)
    assert len(left) == 3
    # A process that has the number of one that is gone.
    other = f"parsgd-{os.getpid()}-1-0"
    subprocess.run(["ip", "netns", "add", other], check=True)
    stray = subprocess.Popen(links.inside(left[0], ["sleep", "100"]))
    process = start("")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert stray.wait(timeout=10) == -signal.SIGKILL
    assert not spaces_of(killed)
    assert not (links.NAMESPACES / other).exists()
    assert len(spaces_of(living)) == 3
    assert not alive(pids[:1])
    assert os.path.exists(f"/proc/{pids[1]}")


@needs_links
def test_I11_two_labs_at_once(start, tmp_path):
    both = [start(SEND, "--output", f"{i}.json") for i in range(2)]
    for i, process in enumerate(both):
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        result = json.loads((tmp_path / f"{i}.json").read_text())
        assert 999_500 < Counters(**result["whole_run"][1]).payload < 1_050_000


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--link", "fast", "train"], "--link fast: give a preset"),
        (["--processes", "0", "train"], "0 is no whole number"),
        (["--link", "1gbit"], "which command?"),
        (["train", "--link=1gbit"], "stands before the command"),
        (["--output", "none/lab.json", "train"], "there is no such folder"),
        (["list"], "cannot start list"),
    ],
)
def test_wrong_use_ends_with_2_and_one_message(tmp_path, arguments, expected):
    ended = subprocess.run(
        [sys.executable, "-m", "parsgd.cli", "lab", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert expected in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout
