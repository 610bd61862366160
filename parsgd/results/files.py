"""Write and read the files of one job, and find jobs in folders."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from omegaconf import OmegaConf

from parsgd.errors import UserError

SCHEMA = 1
CONFIG, METRICS, RESULT = "config.yaml", "metrics.jsonl", "result.json"
STATUSES = ("completed", "diverged", "failed", "interrupted")


class Job(NamedTuple):
    """One job as it was read: what was asked, what was measured, how it ended."""

    folder: Path
    status: str  # one of STATUSES
    reason: str | None
    config: dict[str, Any]
    overrides: tuple[str, ...]
    metrics: tuple[dict[str, Any], ...]  # one per evaluation, in order
    summary: dict[str, Any]
    final: dict[str, Any] | None
    best: dict[str, Any] | None
    started: str | None
    versions: dict[str, Any]
    machine: dict[str, Any]


def begin(folder: str | Path, config: Mapping[str, Any]) -> None:
    """Start a job in ``folder``: write its config, remove what an older try left.

    Args:
        folder: The job's own folder; it is made when missing.
        config: The resolved configuration as plain dicts, lists and scalars.

    Raises:
        UserError: The folder cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)
        write_atomic(folder / CONFIG, yaml.safe_dump(_plain(config), sort_keys=False))
        # An empty file marks the job as begun, so that one killed while compiling
        # is reported as interrupted.
        write_atomic(folder / METRICS, "")
    except OSError as error:
        raise _unwritable(folder, error) from error


def append(folder: str | Path, line: Mapping[str, Any]) -> None:
    """Add one evaluation to ``metrics.jsonl`` and flush it to the disk.

    A half-written line at the end, left by a job that was killed, is removed first.

    Raises:
        UserError: The file cannot be written.
    """
    path = Path(folder) / METRICS
    text = json.dumps(_plain(line), allow_nan=False) + "\n"
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
            become numbers, numbers that are not finite become null.

    Raises:
        UserError: The folder cannot be written, or the status is not a known one.
    """
    if result.get("status") not in STATUSES[:3]:
        raise UserError(
            f"a job cannot end with status {result.get('status')!r}: "
            f"use one of {', '.join(STATUSES[:3])}"
        )
    record = {"schema": SCHEMA} | _plain(result)
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


def load(dirs: str | Path | Iterable[str | Path]) -> list[Job]:
    """Every job at or below the given folders, each once, in natural order.

    Raises:
        UserError: A folder does not exist, holds no job, or holds a file that is not
            of this schema.
    """
    roots = [Path(d) for d in ([dirs] if isinstance(dirs, str | Path) else dirs)]
    for root in roots:
        if not root.is_dir():
            raise UserError(f"no folder {root}: give the folder of a job or of a sweep")
    found = {
        path.parent.resolve(): path.parent
        for root in roots
        for name in (RESULT, METRICS)
        for path in root.rglob(name)
        if name == RESULT or (path.parent / CONFIG).is_file()
    }
    if not found:
        raise UserError(
            f"no jobs in {', '.join(map(str, roots)) or 'no folders'}: a job's folder "
            f"holds {CONFIG}, {METRICS} and {RESULT}; give the output folder of a run "
            "or of a sweep"
        )
    return [read_job(folder) for folder in sorted(found.values(), key=_natural)]


def read_job(folder: str | Path) -> Job:
    """Read one job's folder.

    Raises:
        UserError: A file is not of this schema, or was written by a newer parsgd.
    """
    folder = Path(folder)
    metrics = _read_metrics(folder / METRICS)
    if (folder / RESULT).is_file():
        return _finished(folder, _read_result(folder / RESULT), metrics)
    where = f"at round {metrics[-1].get('round')}" if metrics else "before it evaluated"
    overrides = folder / ".hydra" / "overrides.yaml"
    return Job(
        folder=folder,
        status="interrupted",
        reason=f"no {RESULT}: it stopped {where}, or is still running",
        config=_read_yaml(folder / CONFIG, dict),
        overrides=tuple(map(str, _read_yaml(overrides, list))),
        metrics=metrics,
        summary={},
        final=metrics[-1] if metrics else None,
        best=None,
        started=None,
        versions={},
        machine={},
    )


def _finished(folder: Path, record: dict[str, Any], metrics: tuple[dict, ...]) -> Job:
    return Job(
        folder=folder,
        status=record["status"],
        reason=record.get("reason"),
        config=record.get("config") or {},
        overrides=tuple(record.get("overrides") or ()),
        metrics=metrics,
        summary=record.get("summary") or {},
        final=record.get("final"),
        best=record.get("best"),
        started=record.get("started"),
        versions=record.get("versions") or {},
        machine=record.get("machine") or {},
    )


def _read_result(path: Path) -> dict[str, Any]:
    leave_out = "remove it, or leave its folder out"
    try:
        record = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): {leave_out}") from error
    schema = record.get("schema") if isinstance(record, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise UserError(f"{path} is not a parsgd result (no 'schema'): {leave_out}")
    if schema > SCHEMA:
        raise UserError(
            f"{path} was written by a newer parsgd (schema {schema}, this one reads up "
            f"to {SCHEMA}): upgrade parsgd to read it"
        )
    if record.get("status") not in STATUSES:
        raise UserError(
            f"{path} has status {record.get('status')!r}, not one of "
            f"{', '.join(STATUSES)}: {leave_out}"
        )
    return record


def _read_metrics(path: Path) -> tuple[dict[str, Any], ...]:
    if not path.is_file():
        return ()
    *whole, last = path.read_text(errors="replace").split("\n")
    lines = []
    for number, text in enumerate([*whole, last], start=1):
        try:
            line = json.loads(text) if text.strip() else None
            if line is not None and not isinstance(line, dict):
                raise ValueError("not an object")
        except ValueError as error:
            if number > len(whole):  # the job was killed while it wrote this line
                break
            raise UserError(
                f"{path}, line {number} is not a JSON object ({error}): remove the "
                "line, or leave the folder out"
            ) from error
        if line is not None:
            lines.append(line)
    return tuple(lines)


def _read_yaml(path: Path, kind: type) -> Any:
    if not path.is_file():
        return kind()
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (yaml.YAMLError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a YAML file ({error}): mend it") from error
    if not isinstance(content, kind):
        raise UserError(f"{path} holds no {kind.__name__}: mend it or leave it out")
    return content


def _plain(value: Any) -> Any:
    """The value as JSON can hold it: dicts, lists, strings, finite numbers, null."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    array = np.asarray(value)
    if array.dtype == object:
        raise TypeError(f"a {type(value).__name__} cannot be stored in a job's files")
    return _plain(array.tolist())


def _drop_partial_line(file: Any) -> None:
    if not file.seek(0, os.SEEK_END):
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key by which job 10 comes after job 9."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(p), "") if p.isdigit() else (-1, p) for p in parts]


def _unwritable(path: str | Path, error: OSError) -> UserError:
    return UserError(
        f"cannot write {path} ({error.strerror or error}): choose an output folder "
        "that you may write to and that has space"
    )
