"""What a user's own files in a folder of checkpoints are taken for."""

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
