"""What a run's config says of checkpoints, which are in a folder of its folder."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from parsgd import cluster
from parsgd.checkpoint import Checkpoints
from parsgd.checkpoint.choice import meta_to_go_on_from
from parsgd.checkpoint.settings import NEWEST
from parsgd.cli.launchers import elsewhere
from parsgd.cli.resume import has_checkpoints
from parsgd.config.objects import resolved, saves
from parsgd.config.targets import ALLOWED, named_packages
from parsgd.errors import FolderError, UserError
from parsgd.results.writing import CHECKPOINTS, RESULT

# Of what is stored with a checkpoint: how much of the work is done.
POSITION = ("step", "samples", "batch", "global_batch")


def goes_back(cfg: DictConfig) -> bool:
    """Whether the run is to go on from a checkpoint that it names."""
    return saves(cfg) and cfg.checkpoint.step != NEWEST


def refuse_none(folder: Path, cfg: DictConfig) -> None:
    """Refuse to start anew where a checkpoint to go on from was named.

    Raises:
        UserError: ``folder`` holds no checkpoint.
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


def position(folder: Path, cfg: DictConfig) -> dict[str, Any] | None:
    """Where the run goes on: the `POSITION` of its checkpoint; None if it begins.

    The first process reads it for all.
    """
    found = None
    if saves(cfg) and cluster.is_first():
        found = meta_to_go_on_from(folder / CHECKPOINTS, cfg.checkpoint.step)
        if found is not None:
            # From another format nothing is taken: `fit` refuses it.
            whole = found.keys() >= {*POSITION}
            found = {key: found[key] for key in POSITION} if whole else None
    return json.loads(cluster.agree("position", json.dumps(found)))


def checkpoints(
    cfg: DictConfig, folder: Path, overrides: Sequence[str], code: str | None
) -> Checkpoints | None:
    """Where and when the run saves; None if it does not.

    Args:
        cfg: As Hydra composed it.
        folder: The run's own.
        overrides: Its command line.
        code: The checksum of the code of one's own that it calls.

    Raises:
        FolderError: The run saves none, but the folder holds checkpoints.
    """
    node, where = cfg.checkpoint, folder / CHECKPOINTS
    if not saves(cfg):
        if has_checkpoints(folder):
            raise FolderError(
                f"{where} holds checkpoints, and without checkpoint.rounds, "
                "checkpoint.minutes or checkpoint.keep_best this run would start anew "
                "beside them: give one of these to go on, or choose another folder "
                "with hydra.run.dir=DIR"
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
        overrides=[*_config_name(), *overrides],
        code_checksum=code,
        again=_again(folder, overrides),
        quiet=HydraConfig.initialized()
        and HydraConfig.get().mode == RunMode.MULTIRUN
        and elsewhere(HydraConfig.get()),
    )


def _config_name() -> list[str]:
    """The option that names the user's own primary config, if there is one."""
    name = HydraConfig.get().job.config_name if HydraConfig.initialized() else None
    return [] if name in (None, "config") else [f"--config-name={name}"]


def _again(folder: Path, overrides: Sequence[str]) -> str:
    """The command that goes on with a run: parts of one's own are named again."""
    words = ["parsgd", "train"]
    if HydraConfig.initialized():
        for source in HydraConfig.get().runtime.config_sources:
            if source.provider == "command-line":
                words += ["--config-dir", source.path]
    words += [o for o in overrides if {*named_packages([o])} - {*ALLOWED}]
    words += _config_name()
    return shlex.join([*words, f"resume={folder}"])
