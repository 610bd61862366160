"""What is refused before a folder of checkpoints is touched."""

import shutil

import pytest
from resumes import fit

import parsgd
from parsgd import UserError
from parsgd.checkpoint.settings import check
from parsgd.errors import FolderError


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_lock_of_the_users_own_is_left_as_it_is(tmp_path, kind):
    folder, own = tmp_path / "a", tmp_path / "notes"
    folder.mkdir()
    own.write_text("my notes\n")
    lock = folder / "lock"
    lock.symlink_to(own) if kind == "link" else shutil.copy(own, lock)
    with pytest.raises(UserError, match=r"lock|cannot be written"):
        fit(folder)
    assert lock.read_text() == own.read_text() == "my notes\n"


def test_only_plain_numbers_are_steps(tmp_path):
    run = fit(tmp_path / "a")
    (tmp_path / "a" / "\u00b2").mkdir()
    with pytest.raises(UserError, match="something else than checkpoints"):
        fit(tmp_path / "a")
    assert run.status == "completed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_last": 0}, "keep_last=0"),
        ({"step": "abc"}, "step=abc"),
        ({"step": True}, "step=True"),
        ({"keep_best": -1}, "keep_best=-1"),
        ({"every_rounds": 0}, "every_rounds=0"),
        ({"every_minutes": 0}, "every_minutes=0"),
    ],
)
def test_wrong_settings_are_named_in_the_words_of_who_set_them(
    tmp_path, options, message
):
    every = {"every_rounds": 1} | options
    with pytest.raises(UserError, match=f"^{message}: give"):
        fit(tmp_path / "a", every=every.pop("every_rounds"), **every)
    assert not (tmp_path / "a").exists()
    key = f"checkpoint.{message.removeprefix('every_')}"
    with pytest.raises(UserError, match=f"^{key}: give"):
        check(parsgd.Checkpoints(tmp_path / "a", config={}, **options))


@pytest.mark.parametrize("step", ["best", "40", 40])
def test_a_step_that_is_named_must_be_there(tmp_path, step):
    with pytest.raises(FolderError, match=f"step={step}: .* holds no checkpoint"):
        fit(tmp_path / "a", step=step)
    assert not [*(tmp_path / "a").glob("[0-9]*")]
