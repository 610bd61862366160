"""Folders that are damaged, foreign, full, read-only or in use; and what is kept."""

import asyncio
import contextlib
import errno
import gc
import logging
import shutil
import signal
import subprocess
import sys
import threading

import absl.logging
import optax
import pytest
from damage import flip_bytes, other_numbers
from resumes import (
    Watcher,
    assert_same_history,
    assert_same_state,
    fit,
    share_engines,
    steps_in,
    stored,
)

import parsgd
from parsgd import UserError, cluster, signals
from parsgd.checkpoint import store
from parsgd.checkpoint.keeper import keeping
from parsgd.checkpoint.quiet import quiet
from parsgd.training.engine import Engine

# When one array of several cannot be read, the readers of the others come too late.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A run of 6 rounds, 3 steps each, broken off after round 5; and the whole one."""
    share_engines(monkeypatch)
    whole = fit(tmp_path / "whole")
    fit(tmp_path / "run", at=5, keep_last=3)
    assert steps_in(tmp_path / "run") == [6, 9, 12]
    return tmp_path / "run", tmp_path / "whole", whole


def truncate(folder):
    for path in folder.rglob("*"):
        if path.is_file() and path.parent.name == "d":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose_half(folder):
    shutil.rmtree(folder / "state" / "ocdbt.process_0")


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def no_meta(folder):
    (folder / "meta" / "metadata").write_text('{"leaves": ')


DAMAGE = [truncate, lose_half, empty, no_meta, flip_bytes, other_numbers]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_H1_unreadable_newest_falls_back_with_a_warning(saved, damage):
    folder, whole_folder, whole = saved
    damage(folder / "12")
    watcher = Watcher()
    run = fit(folder, watcher=watcher)
    assert any("checkpoint of step 12 cannot be read" in x for x in watcher.lines)
    if damage is other_numbers:
        assert any("its checksum differs" in line for line in watcher.lines)
    assert any("goes on from step 9" in line for line in watcher.lines)
    assert (folder / "12.unreadable").is_dir()  # nothing is deleted
    assert_same_state(folder, whole_folder)
    assert_same_history(run.history, whole.history)


def test_H1_nothing_readable_is_an_error_not_a_new_start(saved):
    folder, *_ = saved
    for step in (6, 9, 12):
        truncate(folder / str(step))
    with pytest.raises(UserError, match=r"none of the checkpoints in .* can be read"):
        fit(folder)
    assert steps_in(folder) == [6, 9, 12]


def test_H1_H9_what_a_killed_save_leaves_is_no_checkpoint(saved):
    folder, whole_folder, _ = saved
    shutil.copytree(folder / "12", folder / "15.orbax-checkpoint-tmp")
    fit(folder)
    assert_same_state(folder, whole_folder)
    assert steps_in(folder) == [15, 18]


def test_foreign_folders_are_refused(saved, tmp_path):
    folder, *_ = saved
    (folder / "thesis.tex").write_text("")
    with pytest.raises(UserError, match=r"holds something else .*: thesis\.tex"):
        fit(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        fit(tmp_path / "file" / "run")
    other = tmp_path / "other"
    (other / "7").mkdir(parents=True)
    with pytest.raises(UserError, match=r"none .* can be read \(step 7"):
        fit(other)


def test_H11_two_runs_in_one_folder(saved):
    folder, *_ = saved
    code = (
        "import sys, pathlib; from parsgd.checkpoint.lock import locked\n"
        f"with locked(pathlib.Path({str(folder)!r})): print('held', flush=True); "
        "sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"in use by process {other.pid} on"):
            fit(folder)
        other.communicate("")
    fit(folder)  # its lock ends with it


def test_H2_a_full_disk_ends_the_run_by_name_and_loses_nothing(saved, monkeypatch):
    folder, whole_folder, _ = saved
    write = store.ocp.CheckpointManager.save

    def full(self, step, *args, **kwargs):
        if step > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, step, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(store.ocp.CheckpointManager, "save", full)
        with pytest.raises(UserError, match=r"No space left.*last one is of step 12"):
            fit(folder)
    fit(folder)
    assert_same_state(folder, whole_folder)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def train(folder, *words, launch=()):
    """Its exit code and all that it says."""
    command = [sys.executable, "-m", "parsgd.cli", *launch, "train", *words]
    command += ["task.model.features=[512]", "optimizer=momentum", "epochs=2"]
    command += ["checkpoint.rounds=20", f"hydra.run.dir={folder}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    return run.returncode, run.stdout + run.stderr


@pytest.mark.slow
def test_H2_a_disk_that_is_full_loses_nothing(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 3_800_000)
    code, said = train(small_disk / "run")
    assert code == 1 and "Traceback" not in said and "Error exec" not in said, said
    assert "cannot write" in said and "No space left on device" in said, said
    ballast.unlink()
    code, said = train(small_disk / "run")
    assert code == 0, said


@pytest.mark.slow
def test_H2_a_disk_without_any_space_is_named(small_disk):
    with contextlib.suppress(OSError), open(small_disk / "ballast", "wb") as ballast:
        while True:
            ballast.write(b"x" * 4096)
            ballast.flush()
    code, said = train(small_disk / "run")
    assert code == 2 and "Traceback" not in said, said
    assert "the disk of the output folder (hydra.run.dir" in said, said


@pytest.mark.slow
def test_H2_a_full_disk_ends_all_processes_with_the_reason(small_disk):
    # Of several processes one would wait for the others, and they for it.
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 3_600_000)
    run = {"launch": ("launch", "--processes", "2")}
    code, said = train(small_disk / "run", "workers=2", **run)
    assert code and "No space left on device" in said and "Traceback" not in said, said
    ballast.unlink()
    code, said = train(small_disk / "run", "workers=2", **run)
    assert code == 0, said


@pytest.mark.slow
def test_a_folder_that_is_read_only_is_refused_at_once(small_disk):
    (small_disk / "run").mkdir()
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True)
    code, said = train(small_disk / "run")
    assert code and "Traceback" not in said, said
    assert "cannot be written" in said and "hydra.run.dir" in said, said


def test_H13_last_and_best_are_kept(tmp_path, monkeypatch):
    share_engines(monkeypatch)
    run = fit(tmp_path / "a", keep_last=2, keep_best=1, evaluations=6)
    accuracy = {r["step"]: r["test_accuracy"] for r in run.history[1:]}
    best = max(accuracy, key=accuracy.get)
    assert {*steps_in(tmp_path / "a")} == {best, 15, 18}
    # Step 9 comes before 12, and so it does in `latest`.
    assert stored(tmp_path / "a")[0]["step"] == 18


@pytest.mark.parametrize("step", ["best", "9"])
def test_H13_goes_on_from_the_best_or_a_given_one(tmp_path, monkeypatch, step):
    share_engines(monkeypatch)
    folder = tmp_path / "a"
    run = fit(folder, keep_last=9, keep_best=1, evaluations=6)
    accuracy = {r["step"]: r["test_accuracy"] for r in run.history[1:]}
    at = max(accuracy, key=accuracy.get) if step == "best" else 9
    newer = [x for x in steps_in(folder) if x > at]
    watcher = Watcher()
    again = fit(folder, keep_last=9, evaluations=6, step=step, watcher=watcher)
    assert any(f"goes on from step {at}," in line for line in watcher.lines)
    assert all((folder / f"{x}.replaced").is_dir() for x in newer)
    assert_same_history(again.history, run.history)
    with pytest.raises(UserError, match=r"step=7: .* holds the steps"):
        fit(folder, step="7")


def test_saving_every_so_many_rounds_and_at_the_end(tmp_path, monkeypatch):
    share_engines(monkeypatch)
    fit(tmp_path / "a", every=4, keep_last=9)
    assert steps_in(tmp_path / "a") == [12, 18]
    fit(tmp_path / "b", every=None, every_minutes=1e-9, keep_last=9)
    assert steps_in(tmp_path / "b")[-1] == 18
    assert len(steps_in(tmp_path / "b")) > 2


class Asked(Watcher):
    """Gets a signal in the first round."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def progress(self, step, steps, record):
        if not self.at:
            self.at = record["round"]
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_run_that_is_asked_to_end_saves_first(tmp_path, monkeypatch, capfd, number):
    share_engines(monkeypatch)
    whole = fit(tmp_path / "whole")
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        fit(tmp_path / "run", every=100, watcher=Asked(number))
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before
    err = capfd.readouterr().err
    assert f"round 1 is saved in {tmp_path / 'run'}; the same script goes on" in err
    assert err.count(f"{signal.Signals(number).name}: ends after the rounds") == 1
    run = fit(tmp_path / "run", every=100)
    assert_same_state(tmp_path / "run", tmp_path / "whole")
    assert_same_history(run.history, whole.history)


@pytest.mark.parametrize("at", [2, 6])
def test_a_run_that_ends_where_it_is_evaluated_keeps_the_evaluation(
    tmp_path, monkeypatch, at
):
    """It could not be added to the checkpoint of that round any more."""
    share_engines(monkeypatch)
    whole = fit(tmp_path / "whole")

    class There(Asked):
        def progress(self, step, steps, record):
            if record["round"] == at:
                signal.raise_signal(self.number)

    with pytest.raises(SystemExit):
        fit(tmp_path / "run", every=100, watcher=There(signal.SIGTERM))
    meta, _ = stored(tmp_path / "run")
    assert meta["round"] == meta["history"][-1]["round"] == at
    run = fit(tmp_path / "run", every=100)
    assert_same_state(tmp_path / "run", tmp_path / "whole")
    assert_same_history(run.history, whole.history)
    assert_same_history(stored(tmp_path / "run")[0]["history"], whole.history)


class AskedTwice(Asked):
    """Gets it twice at once, as from a scheduler and from its parent."""

    def progress(self, step, steps, record):
        first = not self.at
        super().progress(step, steps, record)
        if first:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("every", [1, 100])
def test_a_run_that_is_not_finite_is_not_said_to_be_saved(
    tmp_path, monkeypatch, capfd, every
):
    """Its state is not saved, and only what was saved before goes on."""
    at = 1 if every > 1 else 2
    finite = Engine.finite
    monkeypatch.setattr(Engine, "finite", lambda *args: asked.at < at and finite(*args))

    class Later(Asked):
        def progress(self, step, steps, record):
            self.at = record["round"]
            if self.at == at:
                signal.raise_signal(self.number)

    asked = Later(signal.SIGTERM)
    with pytest.raises(SystemExit):
        fit(tmp_path / "run", every=every, watcher=asked)
    err = capfd.readouterr().err
    if every > 1:
        assert "nothing is saved in" in err and "goes on" not in err
    else:
        assert "round 1, not 2, which is not finite, is saved in" in err
        assert "the same script goes on" in err
    assert steps_in(tmp_path / "run") == [3] * (every == 1)


@pytest.mark.parametrize("apart, saved", [(False, True), (True, False)])
def test_a_second_signal_ends_at_once_unless_it_is_the_same(
    tmp_path, monkeypatch, apart, saved
):
    share_engines(monkeypatch)
    monkeypatch.setattr(signals, "SAME_SECONDS", -1.0 if apart else 1e9)
    with pytest.raises(SystemExit):
        fit(tmp_path / "run", every=100, watcher=AskedTwice(signal.SIGTERM))
    assert bool(steps_in(tmp_path / "run")) == saved


def test_runs_outside_the_main_thread_save_too(tmp_path, monkeypatch):
    share_engines(monkeypatch)
    thread = threading.Thread(target=fit, args=(tmp_path / "a",))
    thread.start()
    thread.join()
    assert steps_in(tmp_path / "a") == [15, 18]


def test_processes_that_open_a_folder_are_missed_by_name(tmp_path, monkeypatch):
    """Orbax waits for all of them there."""
    within = []

    @contextlib.contextmanager
    def together(what, **options):
        within.append(what)
        yield
        within.pop()

    class Opened(store.Store):
        def __init__(self, *args, **options):
            assert within == ["opening the folder of checkpoints"]
            super().__init__(*args, **options)

    monkeypatch.setattr(cluster, "together", together)
    monkeypatch.setattr(store, "Store", Opened)
    with keeping(parsgd.Checkpoints(tmp_path / "a")):
        pass


def test_checkpoints_are_of_the_right_kind():
    with pytest.raises(UserError, match="checkpoints is a str"):
        parsgd.fit(
            parsgd.digits(),
            parsgd.sync_sgd(optax.sgd(0.1)),
            rounds=1,
            worker_batch=1,
            checkpoints="folder",
        )


def test_only_orbax_s_own_log_is_kept_quiet(caplog):
    told = []

    def fail_elsewhere():
        try:
            raise OSError("no room")
        except OSError:
            absl.logging.exception("mine")
            here = "/lib/orbax/checkpoint/writer.py"
            error = sys.exc_info()
            of_orbax = logging.LogRecord("absl", 40, here, 1, "its own", (), error)
            logging.getLogger("absl").handle(of_orbax)

    absl.logging.set_verbosity("info")
    with quiet(told.append):
        absl.logging.warning("a warning of mine")
        thread = threading.Thread(target=fail_elsewhere)
        thread.start()
        thread.join()
    assert [r.getMessage() for r in caplog.records] == ["a warning of mine", "mine"]
    assert [str(error) for error in told] == ["no room"]
    assert not logging.getLogger("absl").filters


@pytest.mark.parametrize(
    "file", ["/lib/orbax/checkpoint/writer.py", "/home/me/mine.py"]
)
def test_what_fails_in_orbax_after_the_report_is_not_shown(caplog, file):
    # Python logs it when it collects what failed, which may be long after the end.
    with quiet():
        pass
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    try:
        exec(compile("raise OSError", file, "exec"), {})
    except OSError as error:
        future.set_exception(error)
    del future
    gc.collect()
    loop.close()
    said = [r.getMessage().splitlines()[0] for r in caplog.records]
    assert said == ([] if "orbax" in file else ["Future exception was never retrieved"])


@pytest.mark.parametrize("name", ["devices=[0,1]", "a\\b", "run*", "run?"])
def test_paths_that_orbax_takes_for_patterns_are_refused(tmp_path, name):
    folder = tmp_path / name / "checkpoints"
    with pytest.raises(UserError, match=r"path has . in it"):
        fit(folder)
    assert not folder.exists()
