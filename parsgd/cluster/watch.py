"""A sign of life for the other processes of a run, and a look at theirs.

Each process writes how far it has come into the run's key-value store, twice a second.
One that stops writing is gone, one that does not come to what the others wait in is
stuck: either ends the others with its name, instead of leaving them in a collective for
ever.
"""

import contextlib
import math
import os
import sys
import threading
import time
import traceback
import zlib
from typing import Any, NamedTuple

LOST = "the store of the run, a process that process 0 has started, is gone"
BEAT_SECONDS = 0.5
DEAD_SECONDS = 10.0  # without a sign of life, with a timeout of a minute or less
SILENT_PART = 6  # of a longer timeout: who allows more for a start allows for stalls
AHEAD = 1 << 60  # a stage that nobody waits for
LEAVING = -1  # that of a process that has said why, and is about to end
HANGING = 10  # times the timeout: then what all have come to is not coming to an end
STUCK_SECONDS = 5.0  # for a wait that cannot end to fail by itself
FAILED_SECONDS = 2.0  # for a failure that all processes have to be seen by all


class _Sign(NamedTuple):
    """What is known of another process, with seconds since it wrote and failed.

    It has come to the stage `reached`, which is `named` so by a checksum of its words,
    and stage `left` is behind it. It is `free` since it was last seen busy.
    """

    silent: float
    reached: int
    left: int = 0
    named: int = 0
    failure: str = ""
    failing: float = 0.0
    free: float = math.inf


class Watch:
    """What one process knows of the others. Does nothing before `start`."""

    def __init__(self):
        self.timeout = 60.0
        self._store: Any = None
        self._process, self._processes = 0, 1
        self._failure = ""
        self._stuck = math.inf  # since when what it waits in cannot end
        self._leaving = False
        self.busy = False  # whether the others have to be patient
        self._stage, self._left, self._what, self._since = 0, 0, "", 0.0
        self._named = 0
        self._patience = 0.0  # seconds for those that have not come
        self._all_since = 0.0  # when all had come, as far as is known
        self._count = 0
        self._seen: dict[int, tuple[str, float]] = {}
        self._failing: dict[int, float] = {}
        self._busy: dict[int, float] = {}  # when they were last seen so
        self._heard = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def start(self, store: Any, process: int, processes: int, timeout: float) -> None:
        """Begin to write and to look.

        Args:
            store: JAX's client of the distributed runtime.
            process: This process.
            processes: How many there are.
            timeout: Seconds to wait for one that does not come.
        """
        self._store, self.timeout = store, timeout
        self._process, self._processes = process, processes
        self._heard = time.monotonic()
        self._seen = dict.fromkeys(range(processes), ("", self._heard))
        self.beat()
        threading.Thread(target=self._run, daemon=True, name="parsgd-watch").start()

    @property
    def silence(self) -> float:
        """Seconds without a sign of life after which a process is gone.

        A machine may stall as a whole, suspended or behind a slow file system: then a
        longer timeout lets its processes be silent for longer.
        """
        return min(self.timeout, max(DEAD_SECONDS, self.timeout / SILENT_PART))

    def stop(self) -> None:
        """The run is over: whoever leaves now is not missed."""
        self._ended.set()

    def enter(self, what: str, *, patient: bool = False) -> None:
        """This process comes to something that all do together.

        Args:
            what: In words.
            patient: Whether the others may come as late as they like.
        """
        with self._lock:
            self._stage += 1
            self._what, self._since = what, time.monotonic()
            self._named = zlib.crc32(what.encode())
            self._all_since = self._since
            self._patience = math.inf if patient else self.timeout

    def leave(self) -> None:
        """It is done."""
        with self._lock:
            self._left, self._what = self._stage, ""

    def fail(self, reason: str) -> None:
        """This process cannot go on, or, with an empty reason, it can again."""
        self._failure, self._stuck = reason.replace("\n", " "), math.inf
        with contextlib.suppress(Exception):  # a store that is gone tells nobody
            self.beat()

    def stuck(self, reason: str) -> None:
        """What this process waits in cannot end, as the others are told."""
        if self._store is None:
            return
        self.fail(reason)
        self._stuck = time.monotonic()

    def beat(self) -> None:
        """One sign of life."""
        if self._store is None:
            return
        with self._lock:
            self._count += 1
            stage = AHEAD if self.busy else self._stage
            stage = LEAVING if self._leaving else stage
            text = f"{self._count} {stage} {self._left} {self._named} {self._failure}"
        key = f"parsgd/alive/{self._process}"
        self._store.key_value_set(key, text, allow_overwrite=True)

    def explain(self) -> None:
        """After a collective failed: wait until the reason is seen; end with it."""
        deadline = time.monotonic() + 5 + 2 * BEAT_SECONDS
        while time.monotonic() < deadline:
            if missing := self._missing(4 * BEAT_SECONDS):
                self._end(missing)
            time.sleep(BEAT_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                missing = self._missing(self.silence)
            except Exception:  # a watch that stops would look like a process gone
                with contextlib.suppress(OSError, ValueError):
                    traceback.print_exc()
                continue
            if missing:
                self._end(missing)

    def _missing(self, silence: float) -> str | None:
        """Who keeps the others waiting, in words."""
        try:
            self.beat()
            others = self._look()
        except Exception:  # whatever the store's connection raises
            if self._ended.is_set():
                return None
            return LOST if time.monotonic() - self._heard > silence else None
        now = time.monotonic()
        with self._lock:
            stage, what, allowed = self._stage, self._what, self._patience
            named = self._named
            waited = now - self._since if what else 0.0
            arrived = [stage <= sign.reached < AHEAD for sign in others.values()]
            if not what or self.busy or not all(arrived):
                self._all_since = now
            hanging = now - self._all_since
        if what and now - self._stuck > STUCK_SECONDS:
            return self._failure
        for other, sign in others.items():
            name = f"process {other} of {self._processes}"
            if sign.silent > silence:
                return f"{name} is gone: no sign of life for {sign.silent:.0f} s"
            # Those that have failed wait for each other, to agree on it.
            counts = not self._failure or sign.reached == LEAVING
            failing = sign.failing if sign.failure and counts else 0.0
            if min(waited, failing) > FAILED_SECONDS:
                return f"{name} failed: {sign.failure}"
            # Patience counts from when it is no longer busy.
            late = what and min(waited, sign.free) > allowed
            if late and LEAVING < sign.reached < stage:
                return (
                    f"{name} has not come to {what} within cluster.timeout="
                    f"{allowed:g} s: it is stuck, or slower than that"
                )
            if sign.reached == stage and sign.named != named and waited > allowed:
                return (
                    f"{name} waits in something else than {what}, where process "
                    f"{self._process} is: all must do the same in the same order"
                )
        done = [other for other, sign in others.items() if what and sign.left >= stage]
        if done and hanging > allowed:
            return (
                f"process {self._process} of {self._processes} hangs in {what}, which "
                f"process {done[0]} left over cluster.timeout={allowed:g} s ago"
            )
        if hanging > HANGING * self.timeout:
            return (
                f"all processes have come to {what}, and it has not ended within "
                f"{hanging:.0f} s, {HANGING} x cluster.timeout: one hangs in it, or it "
                "takes longer"
            )
        return None

    def _look(self) -> dict[int, _Sign]:
        """What is known of every other process."""
        found = self._store.key_value_dir_get("parsgd/alive/")
        with self._lock:
            return self._signs(found)

    def _signs(self, found: Any) -> dict[int, _Sign]:
        now = self._heard = time.monotonic()
        out = {
            other: _Sign(now - since, AHEAD)
            for other, (_, since) in self._seen.items()
            if other != self._process
        }
        for key, text in found:
            other = int(key.rpartition("/")[2])
            if other == self._process:
                continue
            count, stage, left, named, failure = text.split(" ", 4)
            if self._seen[other][0] != count:
                self._seen[other] = (count, now)
            if failure:
                self._failing.setdefault(other, now)
            else:
                self._failing.pop(other, None)
            failing = now - self._failing.get(other, now)
            silent = now - self._seen[other][1]
            if int(stage) == AHEAD:
                self._busy[other] = now
            free = now - self._busy.get(other, -math.inf)
            out[other] = _Sign(
                silent, int(stage), int(left), int(named), failure, failing, free
            )
        return out

    def _end(self, missing: str) -> None:
        with self._lock:  # the watch's thread and the main one may both come here
            again = self._ended.is_set()
            self._ended.set()
        if again:
            time.sleep(60)  # the other is about to end the process
        where = f" while waiting in {self._what}" if self._what else ""
        # What is wrong here may be why the other is gone.
        known = not self._failure or self._failure == missing
        own = "" if known else f", after its own failure: {self._failure}"
        message = f"parsgd: {missing}. Process {self._process} stops{where}{own}"
        try:
            # A disk may be full, and a terminal or pipe gone: it ends all the same.
            with contextlib.suppress(OSError, ValueError):
                print(message, file=sys.stderr, flush=True)
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            if self._process == 0:
                # Whose end launchers wait for first: let the others see why before.
                self._leaving = True
                self.fail(missing)
                time.sleep(FAILED_SECONDS + 4 * BEAT_SECONDS)
        finally:
            os._exit(1)
