"""A search: the score of each job decides which jobs come next."""

import math
from pathlib import Path
from typing import Any

import yaml

from parsgd.errors import UserError

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
