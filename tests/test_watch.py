"""Who is missed by the other processes of a run, and why."""

import subprocess
import sys
import time
import zlib

import pytest

from parsgd.cluster.watch import AHEAD, DEAD_SECONDS, HANGING, LEAVING, Watch


class Store:
    """A key-value store as that of JAX's runtime."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value, allow_overwrite=False):
        assert allow_overwrite or key not in self.values
        self.values[key] = value

    def key_value_dir_get(self, prefix):
        return [(k, v) for k, v in self.values.items() if k.startswith(prefix)]


@pytest.fixture
def two(monkeypatch):
    """Process 0's watch, the clock, and what to write as process 1."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    store, watch = Store(), Watch()
    watch._store, watch._processes, watch.timeout = store, 2, 60.0
    watch._seen = {0: ("", 100.0), 1: ("", 100.0)}

    def later(seconds, stage, failure="", left=0, what=None):
        now[0] += seconds
        named = watch._named if what is None else zlib.crc32(what.encode())
        sign = f"{now[0]} {stage} {left} {named} {failure}"
        store.values["parsgd/alive/1"] = sign
        return watch._missing(DEAD_SECONDS)

    return watch, later


@pytest.fixture
def three(two):
    """Process 0's watch, and what to write as the processes 1 and 2."""
    watch, later = two
    watch._processes, watch._seen[2] = 3, ("", 100.0)

    def both(seconds, *signs):
        first, second = signs
        sign = f"{time.monotonic() + seconds} {second[0]} 0 {watch._named} {second[1]}"
        watch._store.values["parsgd/alive/2"] = sign
        return later(seconds, *first)

    return watch, both


def test_processes_that_have_failed_wait_for_each_other(three):
    watch, later = three
    watch.fail("no disk")
    watch.enter("agreeing on the end of job")
    for seconds in (1, 3, 3):  # the other two: one has failed, one still computes
        assert later(seconds, (1, "no disk"), (AHEAD, "")) is None
    assert later(1, (1, "no disk"), (1, "no disk")) is None
    missing = later(60, (1, "no disk"), (0, ""))
    assert "process 2 of 3 has not come to agreeing on the end of job" in missing
    assert later(1, (1, "no disk"), (LEAVING, "process 0 failed")) is None
    for _ in range(2):
        missing = later(2, (1, "no disk"), (LEAVING, "process 0 failed"))
    assert missing == "process 2 of 3 failed: process 0 failed"


def test_who_has_not_failed_ends_with_who_has(three):
    watch, later = three
    watch.enter("the readout")
    assert later(1, (1, ""), (0, "no disk")) is None
    assert later(3, (1, ""), (0, "no disk")) == "process 2 of 3 failed: no disk"


def test_who_ends_the_run_says_so_to_those_that_have_failed(two, monkeypatch):
    watch, _ = two

    class Ended(Exception):
        pass

    def end(code):
        raise Ended

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr("os._exit", end)
    with pytest.raises(Ended):
        watch._end("process 1 of 2 failed: no disk")
    _, stage, *_ = watch._store.values["parsgd/alive/0"].split()
    assert int(stage) == LEAVING


@pytest.mark.parametrize(
    "timeout, seconds", [(1, 1), (5, 5), (30, 10), (60, 10), (90, 15), (600, 100)]
)
def test_a_longer_timeout_allows_for_a_longer_silence(monkeypatch, timeout, seconds):
    asked = []

    def missing(patience):
        asked.append(patience)
        watch.stop()

    watch = Watch()
    watch.timeout = timeout
    monkeypatch.setattr(watch, "_missing", missing)
    monkeypatch.setattr("parsgd.cluster.watch.BEAT_SECONDS", 0)
    watch._run()
    assert asked == [seconds]


def test_who_does_not_come_is_stuck(two):
    watch, later = two
    assert later(1, 0) is None
    watch.enter("the 12 rounds")
    assert later(59, 0) is None
    assert "process 1 of 2 has not come to the 12 rounds within" in later(2, 0)
    assert later(1, AHEAD) is None  # it compiles, say
    assert later(1, 1) is None  # there it is
    watch.leave()
    assert later(1000, 1) is None


def test_patience_counts_from_when_the_other_is_no_longer_busy(two):
    watch, later = two
    watch.enter("the initial parameters")
    for _ in range(5):
        assert later(59, AHEAD) is None
    assert later(59, 0) is None
    assert "has not come to the initial parameters within" in later(2, 0)


def test_what_all_have_come_to_may_hang(two):
    watch, later = two
    watch.enter("the 12 rounds")
    for _ in range(HANGING):
        assert later(60, 1) is None
    assert "all processes have come to the 12 rounds" in later(1, 1)
    watch.busy = True
    assert later(1, 1) is None


def test_who_hangs_in_what_another_has_left_says_so_itself(two):
    watch, later = two
    watch.enter("the 12 rounds")
    assert later(59, 1, left=1) is None
    assert later(1, 1, left=0) is None
    missing = later(2, 1, left=1)
    assert "process 0 of 2 hangs in the 12 rounds, which process 1 left" in missing
    watch.leave()
    assert later(1000, 1, left=1) is None
    watch.enter("the readout")
    assert later(59, 2, left=1) is None


def test_processes_that_wait_for_different_things_are_told_apart(two):
    watch, later = two
    watch.enter("the readout")
    assert later(59, 1, what="saving a checkpoint") is None
    missing = later(2, 1, what="saving a checkpoint")
    assert "process 1 of 2 waits in something else than the readout" in missing
    assert later(1, 1, what="the readout") is None
    watch.enter("the end", patient=True)
    assert later(500, 2, what="another") is None


def test_a_store_that_is_gone_ends_all(two):
    watch, later = two

    def gone(*_, **__):
        raise RuntimeError("connection refused")

    assert later(1, 0) is None
    watch._store.key_value_set = gone
    assert later(DEAD_SECONDS - 1, 0) is None
    assert later(2, 0).startswith("the store of the run")


def test_who_is_silent_is_gone_and_who_fails_says_why(two):
    watch, later = two
    watch.enter("the readout")
    assert later(1, 1, "no disk") is None  # it may be a failure of all
    assert later(3, 1, "no disk") == "process 1 of 2 failed: no disk"
    assert later(1, 1) is None
    silent = watch._store.values["parsgd/alive/1"]
    later(DEAD_SECONDS + 1, 1)
    watch._store.values["parsgd/alive/1"] = silent
    watch._seen[1] = (silent.split()[0], 100.0)
    assert "process 1 of 2 is gone: no sign of life" in watch._missing(DEAD_SECONDS)


def test_what_hangs_is_counted_from_when_all_had_come(two):
    watch, later = two
    watch.enter("the 12 rounds")
    for _ in range(2 * HANGING):
        assert later(60, AHEAD) is None  # it compiles, however long
    for _ in range(HANGING):
        assert later(60, 1) is None
    assert "all processes have come to the 12 rounds" in later(1, 1)


def test_who_may_be_late_is_waited_for(two):
    watch, later = two
    watch.enter("the end", patient=True)
    for _ in range(100):
        assert later(60, 0) is None
    assert later(3, 0, "no disk") is None
    assert later(3, 0, "no disk") == "process 1 of 2 failed: no disk"


ENDS = """
import sys, threading, time
from parsgd.cluster.watch import Watch
watch = Watch()
watch._process = 1
sys.stderr = open("/dev/full", "w")
threading.Thread(target=watch._end, args=["process 0 is gone"], daemon=True).start()
time.sleep(60)
"""


def test_G5_a_full_disk_does_not_keep_a_process_from_ending():
    """It has nowhere to say why, and must not wait for the others for ever."""
    ended = subprocess.run([sys.executable, "-c", ENDS], timeout=50, check=False)
    assert ended.returncode == 1
