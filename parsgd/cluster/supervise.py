"""Processes that live and die together: the first failure ends all."""

import contextlib
import ctypes
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from parsgd.errors import UserError
from parsgd.signals import ENDING, handled, is_same, terminal_may_close

LAST_LINES = 5
POLL_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1


def supervise(
    commands: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]],
    *,
    cores: Sequence[int] | None = None,
    grace: float = 5.0,
) -> int:
    """Run the commands side by side until all have ended.

    Args:
        commands: One per process.
        environments: What each one gets besides this process's environment.
        cores: The core that each one is kept on; None leaves it to the system.
        grace: Seconds that the others have to end after one failed, before they are
            killed. After a signal they have as long as they need, as to save, until
            one has ended; after a second one none.

    Returns:
        0, or the exit code of the first that failed (128 + n if signal n killed it), or
        128 + n if signal n ended this process.

    Raises:
        UserError: A command cannot be started.
    """
    group: list[_Process] = []
    stop: list[int] = []  # signals that came
    # What this process was told to ignore, as by nohup, the others ignore too.
    with handled(ENDING, stop.append):
        try:
            for i, (command, more) in enumerate(
                zip(commands, environments, strict=True)
            ):
                core = None if cores is None else cores[i]
                group.append(_Process(i, command, os.environ | more, core))
            failed = _watch(group, stop, grace)
        finally:
            for process in group:
                process.kill()
    for process in group:
        process.rest()
    if stop:
        return 128 + stop[0]
    if failed is None:
        return 0
    _report(failed, len(group))
    return failed.code


def _watch(group: list["_Process"], stop: list[int], grace: float) -> "_Process | None":
    """Show what they write until all have ended; returns the first that failed."""
    failed: _Process | None = None
    told, first, deadline = 0, math.inf, None
    with selectors.DefaultSelector() as selector:
        for process in group:
            for pipe in process.pipes:
                selector.register(pipe, selectors.EVENT_READ, process.read)
            if process.ending is not None:
                selector.register(process.ending, selectors.EVENT_READ, _no_more)
        while [process for process in group if process.running()]:
            for key, _ in selector.select(POLL_SECONDS):
                if not key.data(key.fileobj):
                    selector.unregister(key.fileobj)
            if failed is None:
                failed = _first_failed(group)
                if failed is not None and not stop:
                    deadline = time.monotonic() + grace
                    _tell(group, signal.SIGTERM)
            for number in stop[told:]:
                told += 1
                if told > 1 and is_same(first):
                    continue
                _tell(group, number)
                first = min(first, time.monotonic())
                if told > 1:  # who presses Ctrl-C twice does not want to wait
                    deadline = time.monotonic()
            if stop and deadline is None and not all(p.running() for p in group):
                # Those that save end together; what is left waits for what has gone.
                deadline = time.monotonic() + grace
            if deadline is not None and time.monotonic() >= deadline:
                _tell(group, signal.SIGKILL)
            if not selector.get_map():
                time.sleep(POLL_SECONDS)
    # The last to end may have failed after it was looked at.
    return failed or _first_failed(group)


def _first_failed(group: Sequence["_Process"]) -> "_Process | None":
    return next((p for p in group if p.code and not p.running()), None)


def _no_more(ending: int) -> bool:
    """A process ended: it is seen at once, so that the first failure is known."""
    return False


def _tell(group: Sequence["_Process"], number: int) -> None:
    for process in group:
        process.tell(number)


def _report(failed: "_Process", count: int) -> None:
    code = failed.popen.returncode
    if failed.number == 0 and code > 0:
        return  # what it had to say is shown as it is
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    others = "; the others were ended" if count > 1 else ""
    lines = [line for line in failed.last if line.strip()]
    said = ". Its last lines:" if lines else "; it had printed nothing"
    text = f"parsgd: process {failed.number} of {count} {how}{others}{said}"
    with terminal_may_close():
        print("\n  ".join([text, *lines]), file=sys.stderr, flush=True)


class _Process:
    """One process, in a process group of its own, and what it wrote."""

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        core: int | None,
    ):
        self.number = number
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._over = False
        try:
            self.popen = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C comes from here, and only once
                preexec_fn=_prepared(core),
            )
        except OSError as error:
            raise UserError(f"cannot start {command[0]}: {error.strerror}") from error
        out, err = self.popen.stdout, self.popen.stderr
        assert out is not None and err is not None
        self.pipes = (out, err)
        # Parts of a line: put together only once, however long it is.
        self._partial: dict[IO[bytes], list[bytes]] = {out: [], err: []}
        self.ending = _ending(self.popen.pid)
        for pipe in self.pipes:
            os.set_blocking(pipe.fileno(), False)

    @property
    def code(self) -> int:
        """As a shell tells it: 128 + n where signal n killed it."""
        code = self.popen.returncode or 0
        return 128 - code if code < 0 else code

    def running(self) -> bool:
        if self._over:
            return False
        if self.popen.poll() is not None:
            # At once: later its number may be another's.
            self._over = True
            self._kill_group()
        return not self._over

    def tell(self, number: int) -> None:
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, number)

    def kill(self) -> None:
        """End it with all that it started, and reap it."""
        if self.running():
            self._kill_group()
            self.popen.wait()
            self._over = True

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)

    def read(self, pipe: Any) -> bool:
        """Show whole lines of what came; False at the end."""
        try:
            data = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        end, *lines = data.split(b"\n")
        self._partial[pipe].append(end)
        for line in lines:
            self._show(pipe, b"".join(self._partial[pipe]))
            self._partial[pipe] = [line]
        return bool(data)

    def rest(self) -> None:
        """Show what is left in the pipes, if they were still being read."""
        for pipe in self.pipes:
            while self.read(pipe) and _readable(pipe):
                pass
            if left := b"".join(self._partial[pipe]):
                self._show(pipe, left)
            pipe.close()
        if self.ending is not None:
            os.close(self.ending)

    def _show(self, pipe: Any, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self.last.append(text)
        stream = sys.stdout if pipe is self.pipes[0] else sys.stderr
        with terminal_may_close():
            print(f"[{self.number}] {text}" if self.number else text, file=stream)
            stream.flush()


def _ending(pid: int) -> int | None:
    """A file that can be read when the process has ended, where the system has such."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, or one that forbids it
        return None


def _readable(pipe: IO[bytes]) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        return bool(selector.select(0))


def _prepared(core: int | None) -> Callable[[], None]:
    """What a new process does first: die with this one, and keep to its core."""
    parent = os.getpid()
    # Loaded here: between fork and exec as little as possible should happen.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        if core is not None:
            os.sched_setaffinity(0, {core})

    return prepare
