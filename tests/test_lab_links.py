"""What the lab's links need, and how they are removed; without any real one."""

import os
import signal
import subprocess
import sys

import pytest
from needs_links import needs_links

from parsgd.errors import UserError
from parsgd.lab import links
from parsgd.lab.network import Link
from parsgd.signals import handled, unwind


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("sys.platform", "darwin", "it needs Linux"),
        ("shutil.which", lambda tool: tool == "ip", "there is no tc here"),
        ("shutil.which", lambda tool: tool == "tc", "there is no ip here"),
        ("os.geteuid", lambda: 1000, "root only: use sudo"),
    ],
)
def test_what_a_machine_lacks_is_said(monkeypatch, name, value, expected):
    monkeypatch.setattr(links.sys, "platform", "linux")
    monkeypatch.setattr(links.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(links.os, "geteuid", lambda: 0)
    assert links.missing() is None
    module, _, attribute = name.partition(".")
    monkeypatch.setattr(getattr(links, module), attribute, value)
    with pytest.raises(UserError, match=f"{expected}.*parsgd launch"):
        links.network(2, Link(1e9)).__enter__()


@pytest.fixture
def pretended(monkeypatch, tmp_path):
    """Namespaces that are files; returns their folder and what ``ip`` was asked."""
    asked = []

    def run(command):
        asked.append(command)
        if command[2] == "delete":
            (tmp_path / command[3]).unlink()
        return ""

    def build(made, link):
        for space in (*made.spaces, made.hub):
            (tmp_path / space).touch()
            yield

    monkeypatch.setattr(links, "missing", lambda: None)
    monkeypatch.setattr(links, "NAMESPACES", tmp_path)
    monkeypatch.setattr(links, "ETC", tmp_path / "etc")
    monkeypatch.setattr(links, "GONE_SECONDS", 0.05)
    monkeypatch.setattr(links, "_run", run)
    monkeypatch.setattr(links, "_build", build)
    return tmp_path, asked


def test_one_removal_that_fails_leaves_no_other_behind(pretended, monkeypatch):
    folder, _ = pretended
    run = links._run

    def failing(command):
        if command[:3] == ["ip", "netns", "pids"] and command[3].endswith("-1"):
            raise UserError("`ip` failed")
        return run(command)

    monkeypatch.setattr(links, "_run", failing)
    with (
        pytest.raises(UserError, match="`ip` failed"),
        links.network(3, Link(1e9)) as made,
    ):
        assert len(list(folder.iterdir())) == 4
    assert [path.name for path in folder.iterdir()] == [made.spaces[1]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_links_are_removed_leaves_none_behind(
    pretended, monkeypatch, number
):
    folder, _ = pretended
    run = links._run

    def disturbed(command):
        if command[2] == "delete":
            signal.raise_signal(number)
        return run(command)

    monkeypatch.setattr(links, "_run", disturbed)
    with (
        pytest.raises(SystemExit) as end,
        handled((signal.SIGINT, signal.SIGTERM), unwind),
        links.network(3, Link(1e9)),
    ):
        assert len(list(folder.iterdir())) == 4
    assert end.value.code == 128 + number  # it was only held off
    assert not list(folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR2])
def test_a_signal_waits_for_what_is_being_made(pretended, monkeypatch, number):
    folder, _ = pretended
    made = []

    def build(network, link):
        for space in (network.hub, *network.spaces):
            signal.raise_signal(number)
            # What was started at that moment goes on, and must not outlive the rest.
            (folder / space).touch()
            made.append(space)
            yield

    monkeypatch.setattr(links, "_build", build)
    interrupt = number == signal.SIGINT
    usual = signal.default_int_handler if interrupt else signal.SIG_DFL
    before = signal.signal(number, usual)  # another test may have set it
    expected = KeyboardInterrupt if interrupt else SystemExit
    try:
        with pytest.raises(expected), links.network(3, Link(1e9)):
            raise AssertionError("it goes on")
    finally:
        signal.signal(number, before)
    assert len(made) == 1
    assert not list(folder.iterdir())


def test_a_second_signal_leaves_what_is_removed_alone(pretended, monkeypatch):
    folder, _ = pretended

    class Removal(links.contextlib.ExitStack):
        """One before which another signal comes."""

        def __exit__(self, *error):
            signal.raise_signal(signal.SIGTERM)
            return super().__exit__(*error)

    monkeypatch.setattr(links.contextlib, "ExitStack", Removal)
    with (
        pytest.raises(SystemExit) as end,
        handled((signal.SIGINT, signal.SIGTERM), unwind),
        links.network(3, Link(1e9)),
    ):
        signal.raise_signal(signal.SIGINT)
    assert end.value.code == 130
    assert not list(folder.iterdir())


TWICE = """
import os, random, signal, time
from parsgd.lab import links
from parsgd.lab.network import Link
random.seed(0)
for number in range(40):
    ready, go = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(go, b"x")
            with links.network(3, Link(1e9)):
                time.sleep(0.3)
        finally:
            os._exit(3)
    os.read(ready, 1)
    time.sleep(random.uniform(0, 0.25))
    os.kill(child, signal.SIGINT)
    time.sleep(random.uniform(0, 0.03))
    os.kill(child, signal.SIGINT)
    os.waitpid(child, 0)
    for folder in (links.NAMESPACES, links.ETC):
        print(*folder.glob(f"parsgd-{child}-*"))
links.remove_leftovers()
"""


@needs_links
@pytest.mark.slow
def test_two_signals_at_any_moments_leave_nothing_behind():
    command = [sys.executable, "-c", TWICE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.split()


def test_a_leftover_that_another_lab_removes_is_no_error(pretended, monkeypatch):
    folder, asked = pretended
    for number in range(2):
        (folder / f"parsgd-{os.getpid()}-1-{number}").touch()
    run = links._run

    def late(command):
        if command[3].endswith("-0"):
            # What the other lab does between the look and the call.
            (folder / command[3]).unlink()
            raise UserError("there is no such namespace")
        return run(command)

    monkeypatch.setattr(links, "_run", late)
    assert len(links.remove_leftovers()) == 2
    assert not list(folder.iterdir())
    assert [command[2] for command in asked] == ["pids", "delete"]


def test_a_root_without_the_right_to_it_is_told_what_to_do():
    refused = "echo 'mount --make-shared /run/netns failed: Operation not permitted'"
    with pytest.raises(UserError, match=r"not permitted.*--privileged.*parsgd launch"):
        links._run(["sh", "-c", f"{refused} >&2; exit 1"])
    with pytest.raises(UserError, match=r"failed: busy$"):
        links._run(["sh", "-c", "echo busy >&2; exit 1"])
