"""What a job's folder holds from an earlier run."""

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from parsgd import cluster
from parsgd.checkpoint.differences import CHECKSUMS
from parsgd.cli.saving import goes_back
from parsgd.config.objects import as_stored
from parsgd.errors import FolderError
from parsgd.flat import leaves
from parsgd.results import read_job
from parsgd.results.writing import CONFIG, METRICS, OVERRIDES, RESULT, plain
from parsgd.training.evaluate import best_score

DONE = ("completed", "diverged")
KEPT = ".kept"  # in the name of a file that another run has replaced


def settled(
    folder: Path, config: dict[str, Any], sums: Mapping[str, str | None] | None = None
) -> str:
    """The status of this config's run in the folder, if it need not be repeated.

    Args:
        folder: The job's own.
        config: As it is stored.
        sums: Its `CHECKSUMS`; None compares the configs only.
    """
    result = _result(folder)
    same = result.get("config") == _stored(config) and not _others(result, sums or {})
    return result["status"] if same and result.get("status") in DONE else ""


def _others(result: dict[str, Any], sums: Mapping[str, str | None]) -> list[str]:
    """Which checksums are not those of the result, in words."""
    before = result.get("summary") or {}
    return [
        CHECKSUMS[key]
        for key, value in sums.items()
        if None not in (value, before.get(key)) and value != before[key]
    ]


def ended(folder: Path, cfg: DictConfig) -> str:
    """The status of a job that its sweep will skip, as far as its config tells.

    That its data or its code have changed is found when it runs.
    """
    result = _result(folder)
    if result.get("status") not in DONE or goes_back(cfg):
        return ""
    same = is_same(result.get("config") or {}, as_stored(cfg))
    return result["status"] if same else ""


def is_done(folder: Path) -> bool:
    """Whether a folder holds the result of a run that came to its end."""
    return _result(folder).get("status") in DONE


def keep_aside(folder: Path) -> None:
    """Keep a run's files under other names: the next one may not even begin."""
    for name in (CONFIG, METRICS, RESULT):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(folder / name, folder / f"{name}{KEPT}")


def is_same(begun: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether a run was begun with this config, in which ``${steps:...}`` still stand.

    Example:
        >>> is_same({"seed": 0, "warmup": 8}, {"seed": 0, "warmup": "${steps:0.1}"})
        True
        >>> is_same({"seed": 1, "warmup": 8}, {"seed": 0, "warmup": "${steps:0.1}"})
        False
    """
    old, new = leaves(begun), leaves(_stored(config))
    known = {key: x for key, x in new.items() if "${steps:" not in str(x)}
    return old.keys() == new.keys() and all(old[key] == known[key] for key in known)


def refuse_other(
    folder: Path, config: dict[str, Any], sums: Mapping[str, str | None]
) -> None:
    """Refuse to write over what another config, other data or other code gave.

    Raises:
        FolderError: Names what differs.
    """
    result = _result(folder)
    if not is_done(folder):
        return
    raise FolderError(
        f"{folder} holds the result of another run, which differs in "
        f"{_changed(result, config, sums)}: choose another folder with "
        "hydra.run.dir=DIR, or remove this one"
    )


def why_again(
    folder: Path, config: dict[str, Any], sums: Mapping[str, str | None]
) -> str:
    """Why the run of a sweep's folder is repeated, as a line."""
    result = _result(folder)
    if (status := result.get("status")) not in DONE:
        ended = f"it ended as {status} before" if status else "its result is unreadable"
        return f"{ended}: it is run again"
    changed = _changed(result, config, sums)
    return f"the run before differs in {changed}: it is run again"


def _changed(
    result: dict[str, Any], config: dict[str, Any], sums: Mapping[str, str | None]
) -> str:
    """In what a job is another one than that of a result."""
    old, new = leaves(result.get("config") or {}), leaves(_stored(config))
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    changed += _others(result, sums)
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return f"{', '.join(changed[:3])}{more}"


def end_of(folder: Path) -> tuple[str | None, float]:
    """Why the folder's run ended, and its `best_score`, on all processes."""
    told = ""
    if cluster.is_first():  # the others may not see the folder
        job = read_job(folder)
        told = json.dumps([job.reason, best_score(job.metrics)])
    reason, score = json.loads(cluster.agree("end of the run before", told))
    return reason, score


def overrides_in(folder: Path) -> list[str] | None:
    """The overrides of the job that a folder holds; None where it holds none.

    Hydra writes its file before a job may be refused, so it comes last.
    """
    found = _result(folder).get("overrides")
    for path in (folder / OVERRIDES, folder / ".hydra" / OVERRIDES):
        if found is not None:
            break
        found = yaml.safe_load(path.read_text()) if path.is_file() else None
    return None if found is None else [str(override) for override in found]


def remove_if_empty(folder: Path) -> None:
    """Remove a run's folder, and what it alone stood in, if only Hydra wrote there."""
    if {path.name for path in folder.iterdir()} <= {".hydra", "train.log"}:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it ends at the first that holds more
            for parent in folder.parents:
                if Path.cwd() in parent.parents:
                    parent.rmdir()


def _result(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / RESULT).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _stored(config: dict[str, Any]) -> Any:
    """The same as its file gives it back."""
    return plain(config, words=True)
