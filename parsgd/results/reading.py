"""Find jobs in folders, and read their files."""

import datetime
import os
import re
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf

from parsgd.errors import UserError
from parsgd.results.parsing import parse, wrong_in_record, wrong_in_result
from parsgd.results.writing import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    OVERRIDES,
    RESULT,
    SCHEMA,
    STATUSES,
)


class Job(NamedTuple):
    """One job as it was read: what was asked, what was measured, how it ended."""

    folder: Path
    status: str  # one of STATUSES
    reason: str | None
    config: dict[str, Any]
    overrides: tuple[str, ...]
    choices: dict[str, Any]  # by config group; empty where they are not recorded
    metrics: tuple[dict[str, Any], ...]  # one per evaluation, in order
    summary: dict[str, Any]
    final: dict[str, Any] | None
    best: dict[str, Any] | None
    started: str | None
    versions: dict[str, Any]
    machine: dict[str, Any]


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
        for path in _files(root)
        if path.name == RESULT or (path.parent / CONFIG).is_file()
    }
    if not found:
        raise UserError(
            f"no jobs in {', '.join(map(str, roots)) or 'no folders'}: a job's folder "
            f"holds {CONFIG}, {METRICS} and {RESULT}; give the output folder of a run "
            "or of a sweep"
        )
    return [read_job(folder) for folder in sorted(found.values(), key=_natural)]


def _files(root: Path) -> Iterator[Path]:
    """Results and metrics at or below a folder.

    A job's checkpoints are not searched: while it runs they come and go.
    """
    for folder, inside, names in os.walk(root):
        found = [name for name in (RESULT, METRICS) if name in names]
        if found and CHECKPOINTS in inside:
            inside.remove(CHECKPOINTS)
        yield from (Path(folder) / name for name in found)


def read_job(folder: str | Path) -> Job:
    """Read one job's folder.

    Raises:
        UserError: A file is not of this schema, or was written by a newer parsgd.
    """
    folder = Path(folder)
    # Before the metrics: those of a job that ends meanwhile are then complete.
    record = _read_result(folder / RESULT)
    metrics = _read_metrics(folder / METRICS)
    if record is not None:
        return _finished(folder, record, metrics)
    where = "before it evaluated"
    if metrics:
        where = f"after its evaluation at round {metrics[-1].get('round')}"
    overrides = folder / OVERRIDES
    if not overrides.is_file():  # of an older parsgd
        overrides = folder / ".hydra" / OVERRIDES
    return Job(
        folder=folder,
        status="interrupted",
        reason=f"no {RESULT}: it stopped {where}, or is still running",
        config=_read_yaml(folder / CONFIG, dict),
        overrides=tuple(map(str, _read_yaml(overrides, list))),
        choices={},
        metrics=metrics,
        summary={},
        final=metrics[-1] if metrics else None,
        best=None,
        started=_began(folder),
        versions={},
        machine={},
    )


def _began(folder: Path) -> str | None:
    """When a job without a result began, by its config's file."""
    try:
        seconds = (folder / CONFIG).stat().st_mtime
    except OSError:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()


def _finished(folder: Path, record: dict[str, Any], metrics: tuple[dict, ...]) -> Job:
    return Job(
        folder=folder,
        status=record["status"],
        reason=record.get("reason"),
        config=record.get("config") or {},
        overrides=tuple(map(str, record.get("overrides") or ())),
        choices=record.get("choices") or {},
        metrics=metrics,
        summary=record.get("summary") or {},
        final=record.get("final"),
        best=record.get("best"),
        started=record.get("started"),
        versions=record.get("versions") or {},
        machine=record.get("machine") or {},
    )


def _text(path: Path, errors: str = "strict") -> str | None:
    """What a file holds; None where there is none, or none any more."""
    try:
        return path.read_text(encoding="utf-8", errors=errors)
    except (FileNotFoundError, IsADirectoryError):
        return None


def _read_result(path: Path) -> dict[str, Any] | None:
    leave_out = "remove it, or leave its folder out"
    try:
        text = _text(path)
        if text is None:
            return None
        record = parse(text)
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
    if wrong := wrong_in_result(record):
        raise UserError(f"{path}: {wrong}: {leave_out}")
    return record


def _read_metrics(path: Path) -> tuple[dict[str, Any], ...]:
    *whole, last = (_text(path, "replace") or "").split("\n")
    lines = []
    for number, text in enumerate([*whole, last], start=1):
        try:
            line = parse(text) if text.strip() else None
            if line is not None and not isinstance(line, dict):
                raise ValueError("not an object")
            if line is not None and (wrong := wrong_in_record(line)):
                raise ValueError(wrong)
        except ValueError as error:
            if number > len(whole):  # the job was killed while it wrote this line
                break
            raise UserError(
                f"{path}, line {number} is not an evaluation as JSON ({error}): "
                "remove the line, or leave the folder out"
            ) from error
        if line is not None:
            lines.append(line)
    return tuple(lines)


def _read_yaml(path: Path, kind: type) -> Any:
    try:
        text = _text(path)
        if text is None:
            return kind()
        content = OmegaConf.to_container(OmegaConf.load(StringIO(text)), resolve=False)
    except (yaml.YAMLError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a YAML file ({error}): mend it") from error
    if not isinstance(content, kind):
        raise UserError(f"{path} holds no {kind.__name__}: mend it or leave it out")
    return content


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key by which job 10 comes after job 9."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in parts]
