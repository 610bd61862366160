"""What a run's config says of checkpoints, which are in a folder of its folder."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from parsgd.checkpoint import Checkpoints
from parsgd.checkpoint.settings import NEWEST
from parsgd.cli.resume import has_checkpoints
from parsgd.config.objects import resolved, saves
from parsgd.errors import FolderError, UserError
from parsgd.results.writing import CHECKPOINTS, RESULT


def goes_back(cfg: DictConfig) -> bool:
    """Whether the run is to go on from a checkpoint that it names."""
    return saves(cfg) and cfg.checkpoint.step != NEWEST


def refuse_none(folder: Path, cfg: DictConfig) -> None:
    """Refuse to start anew where a checkpoint to go on from was named.

    Raises:
        UserError: There is none.
    """
    if has_checkpoints(folder):
        return
    # A result that is there stays.
    kind = FolderError if (folder / RESULT).exists() else UserError
    raise kind(
        f"checkpoint.step={cfg.checkpoint.step}: {folder} holds no checkpoint to go on "
        "from: leave it out to start anew, or name the run's folder with "
        "hydra.run.dir=DIR"
    )


def checkpoints(
    cfg: DictConfig, folder: Path, overrides: Sequence[str]
) -> Checkpoints | None:
    """Where and when the run saves; None if it does not.

    Raises:
        FolderError: It does not, but the folder holds checkpoints.
    """
    node, where = cfg.checkpoint, folder / CHECKPOINTS
    if not saves(cfg):
        if has_checkpoints(folder):
            raise FolderError(
                f"{where} holds checkpoints, and without checkpoint.rounds or "
                "checkpoint.minutes this run would start anew beside them: give one of "
                "the two to go on, or choose another folder with hydra.run.dir=DIR"
            )
        return None
    return Checkpoints(
        where,
        every_rounds=node.rounds,
        every_minutes=node.minutes,
        keep_last=node.keep_last,
        keep_best=node.keep_best,
        step=node.step,
        force=node.force,
        config=resolved(cfg),
        overrides=overrides,
    )
