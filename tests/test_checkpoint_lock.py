"""What is refused before a folder of checkpoints is touched."""

import shutil

import pytest
from resumes import fit

from parsgd import UserError


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
        ({"keep_last": 0}, "checkpoint.keep_last=0"),
        ({"step": "abc"}, "checkpoint.step=abc"),
        ({"keep_best": -1}, "checkpoint.keep_best=-1"),
        ({"every": 0}, "checkpoint.rounds=0"),
        ({"every_minutes": 0}, "checkpoint.minutes=0"),
    ],
)
def test_wrong_settings_are_named(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        fit(tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()
