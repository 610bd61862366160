"""Write the files of one job."""

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from parsgd.errors import FolderError, UserError

SCHEMA = 1
CONFIG, METRICS, RESULT = "config.yaml", "metrics.jsonl", "result.json"
OVERRIDES = "overrides.yaml"  # of a run of the command
CHECKPOINTS = "checkpoints"  # in a job's folder too, if it saves any
STATUSES = ("completed", "diverged", "failed", "interrupted")


@contextlib.contextmanager
def held(folder: str | Path) -> Iterator[None]:
    """Keep a folder for one job: no other can hold it, however this process ends.

    Args:
        folder: The job's own folder; it is made when missing.

    Raises:
        UserError: The folder cannot be written.
        FolderError: Another job is running in it.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / METRICS, "ab")  # noqa: SIM115
    except OSError as error:
        raise _unwritable(folder, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderError(
                f"another job is running in {folder}, and their results would mix: "
                "wait for it or end it, or choose another folder (hydra.run.dir=DIR; "
                "in a script, the Recorder's folder)"
            ) from error
        except OSError as error:
            raise _unwritable(folder, error) from error
        yield


def begin(
    folder: str | Path,
    config: Mapping[str, Any],
    overrides: Sequence[str] | None = None,
) -> None:
    """Start a job in ``folder``: write its config, remove what an older try left.

    Args:
        folder: The job's own folder; it is made when missing.
        config: The resolved configuration as plain dicts, lists and scalars.
        overrides: What the user changed. Hydra stores it too, but also of a command
            that is refused the folder of another run.

    Raises:
        UserError: The folder cannot be written.
    """
    folder = Path(folder)
    # Before anything is removed: it may not be storable.
    text = yaml.safe_dump(plain(config, words=True), sort_keys=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)
        # An empty file marks the job as begun, so that one killed while compiling
        # is reported as interrupted. It stays the file that `held` has locked.
        with open(folder / METRICS, "wb"):
            pass
        if overrides is None:
            if (folder / CONFIG).exists():  # of a command that was here before
                (folder / OVERRIDES).unlink(missing_ok=True)
        else:
            write_atomic(folder / OVERRIDES, yaml.safe_dump(plain(list(overrides))))
        write_atomic(folder / CONFIG, text)
    except OSError as error:
        raise _unwritable(folder, error) from error


def append(folder: str | Path, line: Mapping[str, Any]) -> None:
    """Add one evaluation to ``metrics.jsonl`` and flush it to the disk.

    A half-written line at the end, left by a job that was killed, is removed first.

    Raises:
        UserError: The file cannot be written.
    """
    path = Path(folder) / METRICS
    text = json.dumps(plain(line), allow_nan=False) + "\n"
    try:
        with open(path, "a+b") as file:
            _drop_partial_line(file)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(path, error) from error


def finish(folder: str | Path, result: Mapping[str, Any]) -> None:
    """Write ``result.json`` in one step: a reader sees all of it or none.

    Args:
        folder: The job's folder.
        result: The fields of the schema but ``schema`` itself; numpy and jax scalars
            become numbers; numbers that are not finite become null, or in the config
            words.

    Raises:
        UserError: The folder cannot be written, or the status is not a known one.
    """
    if result.get("status") not in STATUSES:
        raise UserError(
            f"a job cannot end with status {result.get('status')!r}: "
            f"use one of {', '.join(STATUSES)}"
        )
    record = {"schema": SCHEMA} | plain(result)
    if "config" in result:
        record["config"] = plain(result["config"], words=True)
    try:
        write_atomic(Path(folder) / RESULT, json.dumps(record, indent=1) + "\n")
    except OSError as error:
        raise _unwritable(folder, error) from error


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Replace ``path`` by ``content`` in one step, so that no reader sees a half."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(draft, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def plain(value: Any, *, words: bool = False) -> Any:
    """The value as JSON can hold it: dicts, lists, strings, finite numbers, null.

    Args:
        value: What is to be stored.
        words: Whether numbers that are not finite become words, by which settings stay
            apart, in place of null, which a measurement without a value is.

    Raises:
        TypeError: A part of it is neither one of these nor an array of numbers.
    """
    if value is None or isinstance(value, bool):
        return value
    # Of the plain types themselves: NumPy's numbers, and enums, are subclasses.
    if isinstance(value, str):
        # A file's name may hold bytes that are no text, and no file could.
        return str(value).encode(errors="backslashreplace").decode()
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return str(float(value)) if words else None
    if isinstance(value, Mapping):
        return {str(key): plain(item, words=words) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, words=words) for item in value]
    if isinstance(value, Path):
        return str(value)
    array = np.asarray(value)
    if array.dtype.kind not in "biufU":
        raise TypeError(f"a {type(value).__name__} cannot be stored in a job's files")
    return plain(array.tolist(), words=words)


def _drop_partial_line(file: Any) -> None:
    if not file.seek(0, os.SEEK_END):
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _unwritable(path: str | Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write {path} ({error.strerror or error}): choose an output folder "
        "that you may write to and that has space"
    )
