"""``parsgd train``, ``traffic`` and ``report``."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from parsgd import config
from parsgd.errors import UserError
from parsgd.targets import ALLOWED, named_packages

if TYPE_CHECKING:
    from parsgd.job import Outcome

TRAFFIC = """\
usage: parsgd traffic [KEY=VALUE ...]

Counts what one worker sends in a round, from the program itself; nothing is trained.

  parsgd traffic strategy=one_bit_sgd task=digits workers=8
  parsgd traffic strategy=local_sgd local_steps=4 task/model=mlp_258k workers=64
"""
REPORT = """\
usage: parsgd report DIR... [target=ACCURACY] [out=DIR]

Rebuilds table, figures and page from the folders of runs or sweeps.

  parsgd report multirun/2026-01-31/12-00-00-000000
  parsgd report outputs multirun target=0.97 out=compared
"""


def train(arguments: list[str]) -> int:
    """Train one configuration, or a sweep: a Hydra application.

    Returns:
        0, or 1 if the run failed or diverged, or 2 if it could not be as asked. A sweep
        ends in `parsgd.sweep.Sweep`, which knows all of its jobs.
    """
    allowed = ALLOWED + named_packages(arguments, _config_dirs(arguments))
    codes = [0]

    def job(cfg: DictConfig) -> str:
        from parsgd.job import run_job

        hydra_config = HydraConfig.get()
        overrides = list(hydra_config.overrides.task)
        sweeping = hydra_config.mode == RunMode.MULTIRUN
        if sweeping:
            print(f"#{hydra_config.job.num} {' '.join(overrides)}", flush=True)
        folder = Path(hydra_config.runtime.output_dir)
        outcome = run_job(cfg, folder, overrides, allowed=allowed)
        if sweeping:
            print(_ending(outcome), flush=True)
        elif outcome.status == "completed":
            print(f"completed: {folder}")
        else:
            print(f"parsgd: {_ending(outcome)}", file=sys.stderr)
            codes.append(2 if outcome.mistake else 1)
        return outcome.status

    config.register()
    # Hydra would print tracebacks of its own; the command explains errors instead.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    before, sys.argv = sys.argv, ["parsgd train", *_ordered(arguments)]
    try:
        application = hydra.main(
            version_base="1.3",
            config_path=str(config.conf_dir()),
            config_name="config",
        )
        application(job)()
    finally:
        sys.argv = before
    return codes[-1]


def _ordered(arguments: list[str]) -> list[str]:
    """Options first, then overrides: argparse wants the latter in one piece."""
    overrides = [a for a in arguments if a[:1] != "-" and ("=" in a or a[:1] == "~")]
    options = [a for a in arguments if a not in overrides and a != "--dry-run"]
    if "--dry-run" in arguments:
        overrides.append("hydra.callbacks.parsgd.dry_run=true")
    return [*options, *overrides]


def _ending(outcome: "Outcome") -> str:
    if outcome.skipped:
        return f"{outcome.status} before: skipped"
    if outcome.mistake:
        return str(outcome.reason)
    return ": ".join(part for part in outcome[:2] if part)


def _config_dirs(arguments: list[str]) -> list[str]:
    """Values of ``--config-dir``, in both spellings."""
    found = []
    for at, argument in enumerate(arguments):
        flag, _, value = argument.partition("=")
        if flag in ("--config-dir", "-cd"):
            found += [value] if value else arguments[at + 1 : at + 2]
    return found


def traffic(arguments: list[str]) -> int:
    """Print what a configuration sends."""
    if any(a in ("-h", "--help") for a in arguments):
        print(TRAFFIC, end="")
        return 0
    from parsgd.traffic_table import show

    folders = _config_dirs(arguments)
    overrides = [a for a in arguments if "=" in a and not a.startswith("-")]
    if folders:
        paths = ",".join(f"file://{Path(folder).resolve()}" for folder in folders)
        overrides.append(f"hydra.searchpath=[{paths}]")
    config.register()
    with hydra.initialize_config_dir(str(config.conf_dir()), version_base="1.3"):
        cfg = hydra.compose("config", overrides=overrides)
    built = config.build(cfg, allowed=ALLOWED + named_packages(arguments, folders))
    show(built)
    return 0


def report(arguments: list[str]) -> int:
    """Rebuild table, figures and page; 0 whatever the jobs' status."""
    if not arguments or any(a in ("-h", "--help") for a in arguments):
        print(REPORT, end="")
        return 0 if arguments else 2
    from parsgd.sweep import show_report

    options: dict[str, str] = {}
    dirs = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in ("out", "target", "debug"):
            options[key] = value
        else:
            dirs.append(Path(argument))
    target = options.get("target")
    try:
        goal = float(target) if target is not None else None
    except ValueError as error:
        raise UserError(f"target={target}: give an accuracy such as 0.97") from error
    show_report(dirs, options.get("out"), goal)
    return 0
