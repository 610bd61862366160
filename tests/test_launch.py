"""`parsgd launch`: processes that start, speak and end together."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from processes import alive

from parsgd.cluster import launch, service
from parsgd.signals import ENDING

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
SCRIPT = """\
import os, signal, sys, time
number = os.environ["PARSGD_PROCESS"]
print("here is", number, "of", os.environ["PARSGD_PROCESSES"])
print("it listens at", os.environ["PARSGD_COORDINATOR"], file=sys.stderr)
"""
GROUP = """\
import jax, os
jax.config.update("jax_platforms", "cpu")
name = lambda key: os.environ[f"PARSGD_{key}"]
jax.distributed.initialize(
    name("COORDINATOR"), int(name("PROCESSES")), int(name("PROCESS"))
)
from jax.experimental import multihost_utils
import numpy as np
own = np.asarray(jax.process_index() + 1)
print("sum", int(multihost_utils.process_allgather(own).sum()))
"""


@pytest.fixture
def start(tmp_path):
    """Starts `parsgd launch` with a script; whatever still runs is ended."""
    started = []

    def begin(script, *arguments, options=("--processes", "3"), **more):
        (tmp_path / "script.py").write_text(script)
        command = [sys.executable, "-m", "parsgd.cli", "launch", *options]
        process = subprocess.Popen(
            [*command, "script.py", *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **more,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        if not process.stdout.closed:
            process.communicate()


@pytest.fixture
def run(start):
    def wait(*arguments, **more):
        process = start(*arguments, **more)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    return wait


def pids_of(process, count=3):
    """Reads what the processes of WAITING say."""
    found = []
    while len(found) < count:
        line = process.stdout.readline()
        assert line, process.communicate()
        found += map(int, re.findall(r"pid (\d+)", line))
    return found


def test_each_process_is_told_its_place(run):
    code, out, err = run(SCRIPT)
    assert code == 0
    lines = ["[1] here is 1 of 3", "[2] here is 2 of 3", "here is 0 of 3"]
    assert sorted(out.splitlines()) == lines
    (address,) = {line.split()[-1] for line in err.splitlines()}
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)


LONG = """\
import sys, time
from parsgd.cluster.supervise import supervise
script = "import sys; sys.stdout.write(30_000_000 * 'x' + '\\\\nend')"
before = time.process_time()
code = supervise([[sys.executable, "-c", script]], [{}])
print(time.process_time() - before, file=sys.stderr)
sys.exit(code)
"""


def test_a_line_of_any_length_is_soon_shown():
    command = [sys.executable, "-c", LONG]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) == 30_000_005 and done.stdout.endswith("x\nend\n")
    assert float(done.stderr) < 3  # of this process alone


def test_lines_stay_whole(run):
    script = """\
import sys, os
for i in range(300):
    for part in ("a" * 50, "b" * 50, "\\n"):
        print(part, end="", flush=i % 7 == 0)
print("no end of line", end="")
"""
    code, out, _ = run(script, options=("--processes", "2"))
    assert code == 0
    lines = {*out.splitlines()}
    text = "a" * 50 + "b" * 50
    assert lines == {text, f"[1] {text}", "no end of line", "[1] no end of line"}


FAIL = """
if number == "1":
    print("the cause", file=sys.stderr)
    sys.exit(3)
print("pid", os.getpid())
time.sleep(100)
"""
KILLED = FAIL.replace("sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)")
# A process that does not listen to SIGTERM, as one in a collective.
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SCRIPT + FAIL


@pytest.mark.parametrize(
    "script, grace, code, how",
    [
        (SCRIPT + FAIL, "1000", 3, "ended with exit code 3"),
        (SCRIPT + KILLED, "1000", 137, "was killed by SIGKILL"),
        (DEAF, "0.5", 3, "ended with exit code 3"),
    ],
    ids=["fails", "killed", "others do not listen"],
)
def test_G6_a_process_that_fails_ends_all(run, script, grace, code, how):
    got, out, err = run(script, options=("--processes", "3", "--grace", grace))
    assert got == code
    message = f"parsgd: process 1 of 3 {how}; the others were ended. Its last lines:"
    at = err.splitlines().index(message)
    assert err.splitlines()[at + 1 :][-1] == "  the cause"
    assert not alive([int(pid) for pid in re.findall(r"pid (\d+)", out)])


WAITING = """
try:
    print("pid", os.getpid())
    time.sleep(100)
except KeyboardInterrupt:
    print("interrupted", number)
    raise SystemExit(130)
"""


@pytest.mark.parametrize(
    "number, code",
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGUSR2, 140),
    ],
)
def test_signals_are_passed_on_and_all_are_reaped(start, number, code):
    process = start(SCRIPT + WAITING)
    pids = pids_of(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out.count("interrupted") == 3 * (number == signal.SIGINT)
    assert "the others were ended" not in err
    assert not alive(pids)


def test_all_signals_that_a_run_saves_at_are_passed_on_and_leave_its_store():
    assert {*ENDING} == {*service.ENDING}


def test_a_second_signal_does_not_wait(start):
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    process = start(
        deaf + SCRIPT + WAITING, options=("--processes", "3", "--grace", "1000")
    )
    pids = pids_of(process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)  # the same, as from a scheduler
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not alive(pids)


@LINUX
def test_no_orphans_where_the_launcher_is_killed(start):
    process = start(SCRIPT + WAITING)
    pids = pids_of(process)
    process.kill()
    process.communicate()
    assert not alive(pids)


def test_what_a_process_started_ends_with_it(start):
    script = SCRIPT + (
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; "
        "time.sleep(100)'])\n"
        "print('pid', child.pid)\n"
    )
    process = start(script)
    pids = pids_of(process)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert not alive(pids)


def test_I1_each_process_is_shown_its_gpus(run):
    code, out, _ = run(
        "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])",
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "2,3,4,5,6,7"},
    )
    assert code == 0
    assert sorted(out.splitlines()) == ["2,3", "[1] 4,5", "[2] 6,7"]


@LINUX
def test_pin_gives_each_process_one_core(run):
    code, out, _ = run(
        "import os; print(*os.sched_getaffinity(0))",
        options=("--processes", "3", "--pin"),
    )
    assert code == 0
    usable = sorted(os.sched_getaffinity(0))
    cores = [usable[i % len(usable)] for i in range(3)]
    expected = [f"[{i}] {core}" if i else f"{core}" for i, core in enumerate(cores)]
    assert sorted(out.splitlines()) == sorted(expected)


def test_I11_two_launches_at_once(start):
    both = [start(GROUP, options=("--processes", "2")) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert {"[1] sum 3", "sum 3"} <= {*out.splitlines()}


def test_I11_a_reserved_port_is_not_given_twice():
    held = [launch.reserve() for _ in range(50)]
    assert len({holder.getsockname()[1] for holder in held}) == 50
    for holder in held:
        holder.close()


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--processes", "0", "train"], "0 is no whole number, 1 or more"),
        (["--processes", "two", "train"], "two is no whole number"),
        (["--grace", "-1", "train"], "-1 is no number of seconds"),
        (["--proceses", "2", "train"], "unrecognized arguments: --proceses"),
        (["--processes", "2"], "which command?"),
        (["--processes", "2", "list"], "cannot start list: it starts train"),
        (["--", "launch", "train"], "cannot start launch"),
        (["none.py"], "none.py: there is no such file"),
        (["train", "--processes", "2"], "stands before the command"),
        (["train", "--pin"], "--pin is an option of parsgd launch"),
    ],
)
def test_wrong_use_ends_with_2_and_one_message(tmp_path, arguments, expected):
    ended = subprocess.run(
        [sys.executable, "-m", "parsgd.cli", "launch", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert expected in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout


SAVES = """\
import os, signal, time
def save(*_):
    print("asked to end", flush=True)
    time.sleep(1)
    open("saved" + os.environ["PARSGD_PROCESS"], "w").close()
    raise SystemExit(129)
signal.signal(signal.SIGHUP, save)
print("ready", flush=True)
time.sleep(60)
"""
TERMINAL = """\
import os, pty, sys
command = [sys.executable, "-m", "parsgd.cli", "launch", "--processes", "2"]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.executable, [*command, "script.py"])
said = b""
while said.count(b"ready") < 2:
    said += os.read(terminal, 1000)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@LINUX
def test_a_terminal_that_is_closed_leaves_time_to_save(tmp_path):
    (tmp_path / "script.py").write_text(SAVES)
    command = [sys.executable, "-c", TERMINAL]
    subprocess.run(command, cwd=tmp_path, timeout=60, check=True)
    assert {path.name for path in tmp_path.glob("saved*")} == {"saved0", "saved1"}
