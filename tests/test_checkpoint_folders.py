"""Folders that are damaged, foreign, full, read-only or in use; and what is kept."""

import asyncio
import contextlib
import gc
import logging
import pathlib
import shutil
import subprocess
import sys
import threading

import absl.logging
import numpy as np
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
from parsgd import UserError, cluster
from parsgd.checkpoint import names, store
from parsgd.checkpoint.keeper import keeping
from parsgd.checkpoint.quiet import quiet
from parsgd.errors import FolderError

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


def test_runs_with_sizes_of_numpy_save_and_go_on(tmp_path):
    rng = np.arange(5)
    method = parsgd.post_local_sgd(optax.sgd(0.1), switch_step=rng[4])
    sizes = {"workers": rng[2], "worker_batch": rng[4], "local_steps": rng[2]}
    sizes |= {"seed": rng[1], "micro_batches": rng[2], "label_skew": np.float32(0.5)}
    sizes |= {"shards": "fixed", "algorithm": method, "samples": 8 * 12}
    assert fit(tmp_path, at=3, **sizes) is None
    watcher = Watcher()
    assert fit(tmp_path, watcher=watcher, **sizes).status == "completed"
    assert any("goes on from step" in line for line in watcher.lines)


def test_what_a_checkpoint_cannot_hold_is_told_at_the_first_save(tmp_path):
    with pytest.raises(
        UserError, match=r"cannot hold .*Path\('x'\), a PosixPath: give"
    ):
        fit(tmp_path / "a", config={"place": pathlib.PosixPath("x")})


def test_saving_every_so_many_rounds_and_at_the_end(tmp_path, monkeypatch):
    share_engines(monkeypatch)
    fit(tmp_path / "a", every=4, keep_last=9)
    assert steps_in(tmp_path / "a") == [12, 18]
    fit(tmp_path / "b", every=None, every_minutes=1e-9, keep_last=9)
    assert steps_in(tmp_path / "b")[-1] == 18
    assert len(steps_in(tmp_path / "b")) > 2


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


def test_a_link_to_a_folder_of_odd_name_is_refused(tmp_path):
    """Orbax works in the folder itself, whose name it takes for a pattern."""
    (tmp_path / "run[1]").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "run[1]")
    with pytest.raises(FolderError, match=r"path has \[ in it"):
        names.refuse_pattern(tmp_path / "runs" / "checkpoints")
