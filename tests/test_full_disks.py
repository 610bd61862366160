"""Disks that are full or read-only: what a run says, and that it loses nothing."""

import contextlib
import errno
import subprocess
import sys

import pytest
from resumes import assert_same_state, fit
from test_checkpoint_folders import pytestmark, saved  # noqa: F401

from parsgd import UserError
from parsgd.checkpoint import store


def test_H2_a_full_disk_ends_the_run_by_name_and_loses_nothing(saved, monkeypatch):  # noqa: F811
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
