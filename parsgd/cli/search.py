"""A search: the score of each job decides which jobs come next."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from omegaconf import DictConfig, OmegaConf

from parsgd.cli.earlier import overrides_in
from parsgd.cli.sweep_folder import SWEPT
from parsgd.config.overrides import trained
from parsgd.errors import UserError
from parsgd.flat import UNSTORED

FOUND = "optimization_results.yaml"  # Optuna's sweeper writes it at the end
WORST = -math.inf


def comparable(score: float) -> float:
    """The score of a job as a search gets it: one that failed is worse than any.

    Optuna takes no NaN. Told the worst instead, it also tries less of what fails.

    Example:
        >>> comparable(0.9), comparable(math.nan)
        (0.9, -inf)
    """
    return WORST if math.isnan(score) else score


def check(sweeper: Any) -> None:
    """Refuse a search for the smallest score, in which a failed job would win.

    Args:
        sweeper: Its part of Hydra's config.

    Raises:
        UserError: It has another direction than ``maximize``, or several.
    """
    given = sweeper.get("direction", "maximize")
    if getattr(given, "name", given) != "maximize":
        raise UserError(
            f"hydra.sweeper.direction={given}: the score of a job is its best test "
            "accuracy, or minus its best test loss, so more is better: use "
            "hydra/sweeper=search and leave hydra.sweeper.direction out"
        )


def drop_best_of_none(folder: Path) -> None:
    """Remove a search's result that names a job without a score as the best."""
    file = folder / FOUND
    found = yaml.safe_load(file.read_text()) if file.is_file() else None
    if isinstance(found, dict) and found.get("best_value") == WORST:
        file.unlink()
        print("no job of this search has a score, so none of them is the best")


def searches(sweeper: Any) -> bool:
    """Whether it chooses its jobs as it goes.

    Args:
        sweeper: Its part of Hydra's config.
    """
    return not sweeper._target_.endswith(f".{BasicSweeper.__name__}")


def refuse_used(folder: Path, config: DictConfig) -> None:
    """Refuse a folder with trials, unless this search comes to the same ones again.

    Args:
        folder: Of the search.
        config: Of its command, with Hydra's part.

    Raises:
        UserError: The folder's trials are those of another command, or this search may
            not choose the same ones again.
    """
    if all(overrides_in(path) is None for path in folder.glob("[0-9]*")):
        return
    sweeper = config.hydra.sweeper
    sampler = sweeper.get("sampler") or {}
    file = folder / SWEPT
    before = (yaml.safe_load(file.read_text()) if file.is_file() else None) or {}
    more = "choose another folder with hydra.sweep.dir=DIR"
    if sweeper.get("storage") is not None:
        why = "and with hydra.sweeper.storage new ones would be numbered from 0 again"
    elif _asked(before) != _asked(yaml.safe_load(OmegaConf.to_yaml(config))):
        why = "of another command"
        more += ", or repeat that one to complete it, with more n_trials if you like"
    elif not repeatable(sweeper):
        why = "and its sampler may choose others"
        if "seed" in sampler:
            why = "and without hydra.sweeper.sampler.seed others would be chosen"
    else:
        return
    raise UserError(f"{folder} holds the trials of a sweep already, {why}: {more}")


def repeatable(sweeper: Any) -> bool:
    """Whether the same command comes to the same jobs in the same folder."""
    seed = (sweeper.get("sampler") or {}).get("seed")
    return not searches(sweeper) or (seed is not None and not sweeper.get("storage"))


def keep(folder: Path, config: DictConfig) -> None:
    """Store what a search was asked for, as Hydra does of a sweep."""
    file, text = folder / SWEPT, OmegaConf.to_yaml(config)
    if file.read_text() != text:  # the folder's lock: it stays the same file
        file.write_text(text)


def refuse_other_trial(sweeper: Any, folder: Path, given: Sequence[str]) -> None:
    """Refuse to put a trial of a search where another one is.

    Args:
        sweeper: Its part of Hydra's config.
        folder: Of the job.
        given: Its overrides.

    Raises:
        UserError: Jobs before it have ended otherwise than they did.
    """
    there = overrides_in(folder) if searches(sweeper) else None
    if there is not None and trained(there) != trained(given):
        raise UserError(
            f"{folder} holds the trial {' '.join(there)}, and this search comes to "
            f"{' '.join(given)} there, because trials before it have ended otherwise: "
            "start it anew in another folder with hydra.sweep.dir=DIR"
        )


def _asked(config: Mapping[str, Any]) -> Any:
    """What decides which trials a search comes to."""
    hydra = config.get("hydra") or {}
    rest = {k: x for k, x in config.items() if k not in ("hydra", *UNSTORED)}
    sweeper = {**(hydra.get("sweeper") or {}), "n_trials": None}
    return rest, sweeper, trained((hydra.get("overrides") or {}).get("task") or ())
