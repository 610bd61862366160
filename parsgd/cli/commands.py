"""``parsgd train``, ``traffic`` and ``report``."""

import math
import os
import shlex
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from parsgd import cluster
from parsgd.cli.console import uncaught
from parsgd.cli.resume import has_checkpoints, resumed
from parsgd.cluster.alike import check_alike
from parsgd.cluster.rendezvous import Settings, in_environment
from parsgd.config import objects
from parsgd.config.choices import conf_dir, config_dir
from parsgd.config.overrides import is_override, refuse_option, searched
from parsgd.config.targets import ALLOWED, named_packages
from parsgd.errors import UserError
from parsgd.flat import OWN
from parsgd.words import counted

# Of several processes only the first writes and shows.
SILENT = (
    "hydra.output_subdir=null",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
)
RERUN = "--experimental-rerun"
TRAFFIC = """\
usage: parsgd traffic [--config-dir DIR] [KEY=VALUE ...]

Counts what one worker sends in a round, from the program itself; nothing is trained.
Takes one configuration, written as for `parsgd train`; of an experiment that sweeps,
the first job, or the one that the arguments choose.

  parsgd traffic strategy=one_bit_sgd task=digits workers=8
  parsgd traffic strategy=local_sgd local_steps=4 task/model=mlp_258k workers=32
"""
REPORT = """\
usage: parsgd report DIR... [target=ACCURACY] [sort=COST] [out=DIR]

Rebuilds table, figures and page from the folders of runs or sweeps, searched to the
bottom: several are compared with each other. What is written goes to `report` in the
first of them, or to out=DIR. The target is ACCURACY if given, else the target_accuracy
of the configs if all agree on one, else 98 % of the best that was reached. Rows are
sorted by COST: seconds, samples, rounds, bytes to the target, or accuracy; without it
by seconds, or by samples where runs are shorter than a second.

  parsgd report multirun/2026-01-31/12-00-00-000000
  parsgd report outputs multirun target=0.97 sort=bytes out=compared
"""


def train(arguments: list[str]) -> int:
    """Train one configuration, or a sweep: a Hydra application.

    Returns:
        0, or 1 if the run failed or diverged, or 2 if it could not be as asked. A sweep
        ends in `parsgd.cli.sweep.Sweep`, which knows all of its jobs.
    """
    _refuse_pickles(arguments)
    allowed = _allowed(arguments, config_dir(arguments)[0])
    # After that: what a folder says must not choose code.
    arguments = resumed(arguments)
    codes = [0]

    def job(cfg: DictConfig) -> float:
        from parsgd.cli.endings import ending, more_to_do, target_of
        from parsgd.cli.job import run_job
        from parsgd.cli.launchers import elsewhere, own_share
        from parsgd.cli.search import comparable, refuse_other_trial
        from parsgd.cli.sweep_folder import note_refused
        from parsgd.config.chosen import chosen
        from parsgd.config.objects import as_stored

        if Settings(**OmegaConf.to_container(cfg.cluster)) != settings:  # type: ignore[arg-type]
            raise UserError(
                "a config file sets cluster, which is read before config files are: "
                "give it on the command line"
            )
        hydra_config = HydraConfig.get()
        # As they were written: some refer to values that are no keys of Hydra's.
        overrides = OmegaConf.to_container(hydra_config.overrides.task)
        assert isinstance(overrides, list)
        sweeping, first = hydra_config.mode == RunMode.MULTIRUN, cluster.is_first()
        if sweeping and first:
            _tell(f"#{hydra_config.job.num} {' '.join(overrides)}")
        folder = Path(hydra_config.runtime.output_dir)
        if sweeping:
            refuse_other_trial(hydra_config.sweeper, folder, overrides)
        quiet = sweeping and elsewhere(hydra_config)
        if quiet:
            sys.unraisablehook = uncaught  # as in the process of the command
            own_share(hydra_config, cfg)
        outcome = run_job(
            cfg,
            folder,
            overrides,
            allowed=allowed,
            alone=not sweeping,
            choices=chosen(hydra_config, as_stored(cfg)),
            quiet=quiet,
        )
        if sweeping:
            if first:
                if outcome.refused:
                    note_refused(hydra_config, folder, outcome.reason)
                number = f"#{hydra_config.job.num} " if quiet else ""
                _tell(f"{number}{ending(outcome)}")
        elif outcome.status == "completed":
            if first and outcome.skipped:
                more = ""
                if has_checkpoints(folder):
                    again = shlex.quote(f"resume={folder}")
                    more = f"; `parsgd train {again}` with {more_to_do(folder)} goes on"
                print(f"completed before: {folder}{more}")
            elif first:
                print(f"completed: {folder}{target_of(folder)}")
        else:
            if first:
                fault = outcome.status == "failed" and not outcome.mistake
                more = f"; the traceback is in {folder / 'train.log'}" if fault else ""
                print(f"parsgd: {ending(outcome)}{more}", file=sys.stderr)
            codes.append(2 if outcome.mistake and not outcome.begun else 1)
        return comparable(outcome.score)

    def told(cfg: DictConfig) -> float:
        try:
            return job(cfg)
        except UserError as error:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise
            mistakes.append(error)  # Hydra would print a line of its own before it
            return math.nan

    mistakes: list[UserError] = []
    settings = cluster_settings(arguments)
    cluster.start(settings)
    # Also those that decide what the processes agree on before they read a config.
    given = [a.partition("=") for a in arguments]
    check_alike({key: value for key, _, value in given}, own=OWN)
    arguments = [*arguments, *(() if cluster.is_first() else SILENT)]
    # Hydra would print tracebacks of its own; the command explains errors instead.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    before, sys.argv = sys.argv, ["parsgd train", *_ordered(arguments)]
    try:
        application = hydra.main(
            version_base="1.3",
            config_path=str(conf_dir()),
            config_name="config",
        )
        application(told)()
    finally:
        sys.argv = before
    for mistake in mistakes:
        raise mistake
    return codes[-1]


def cluster_settings(arguments: list[str]) -> Settings:
    """The part of the config that must be known before JAX starts, and so before Hydra.

    Raises:
        UserError: The jobs of a sweep cannot differ in it.
    """
    folder, _ = config_dir(arguments)
    parser = OverridesParser.create()
    chosen = [
        a for a in arguments if a.lstrip("+").startswith(("cluster=", "cluster."))
    ]
    for override in parser.parse_overrides(chosen):
        if override.is_sweep_override():
            raise UserError(
                f"{override.input_line}: all jobs of a command run in the same "
                "processes, so this cannot be swept"
            )
    if not chosen and not in_environment():
        return Settings()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = hydra.compose("config", overrides=[*chosen, *searched(folder)])
    if missing := OmegaConf.missing_keys(cfg.cluster):
        raise UserError(
            f"cluster=manual needs cluster.{min(missing)}, as in cluster=manual "
            "cluster.coordinator=10.0.0.1:1234 cluster.processes=2 cluster.process=0"
        )
    return Settings(**OmegaConf.to_container(cfg.cluster))  # type: ignore[arg-type]


def _refuse_pickles(arguments: list[str]) -> None:
    """Refuse Hydra's option that reads a config from a pickle, which can run code."""
    for argument in arguments:
        flag = argument.partition("=")[0]
        # argparse takes the beginning of a name for it.
        if len(flag) > 2 and RERUN.startswith(flag):
            raise UserError(
                f"{flag}: it reads a pickle, which can run any code: repeat a run from "
                "its own files with `parsgd train resume=DIR`, or its command with "
                "hydra.run.dir=DIR of a new folder"
            )


def _ordered(arguments: list[str]) -> list[str]:
    """Options first, then overrides: argparse wants the latter in one piece."""
    overrides = [a for a in arguments if is_override(a)]
    options = [a for a in arguments if a not in overrides and a != "--dry-run"]
    if "--dry-run" in arguments:
        overrides.append("hydra.callbacks.parsgd.dry_run=true")
    return [*options, *overrides]


def _tell(line: str) -> None:
    """Print it in one piece: jobs of other processes print, too."""
    print(f"{line}\n", end="", flush=True)


def _allowed(arguments: list[str], folder: Path | None) -> tuple[str, ...]:
    return ALLOWED + named_packages(arguments, [folder] if folder else [])


def traffic(arguments: list[str]) -> int:
    """Print what a configuration sends."""
    if any(a in ("-h", "--help") for a in arguments):
        print(TRAFFIC, end="")
        return 0
    from parsgd.cli.sweep import sweep_jobs
    from parsgd.cli.traffic_table import show

    folder, overrides = config_dir(arguments)
    for argument in overrides:
        if argument.startswith("-"):
            raise UserError(
                f"{argument}: parsgd traffic has no such option. It takes one "
                "configuration: KEY=VALUE, ~KEY and --config-dir DIR"
            )
    overrides += searched(folder)
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = hydra.compose("config", overrides, return_hydra_config=True)
        jobs = sweep_jobs(cfg) if cfg.hydra.sweeper.get("params") else None
        if jobs:
            cfg = hydra.compose("config", overrides=[*searched(folder), *jobs[0]])
            print(
                f"the first of {counted(len(jobs), 'job')} of this sweep: "
                f"{' '.join(jobs[0])}\nKEY=VALUE chooses another, and `parsgd train "
                "--dry-run -m` with the same arguments lists them"
            )
    OmegaConf.set_struct(cfg, False)
    cfg.pop("hydra", None)
    built = objects.build(cfg, allowed=_allowed(arguments, folder))
    show(built)
    return 0


def report(arguments: list[str]) -> int:
    """Rebuild table, figures and page; 0 whatever the jobs' status."""
    if not arguments or any(a in ("-h", "--help") for a in arguments):
        print(REPORT, end="")
        return 0 if arguments else 2
    from parsgd.cli.report import show_report

    options, dirs = dict[str, str](), []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in ("out", "target", "sort", "debug"):
            options[key] = value
        else:
            refuse_option("report", argument, ("target", "sort", "out"), "folders")
            dirs.append(Path(argument))
    if options.get("out") == "":
        raise UserError("out= is empty: name the folder to write to, or leave it out")
    target = options.get("target")
    try:
        goal = float(target) if target is not None else None
    except ValueError as error:
        raise UserError(f"target={target}: give an accuracy such as 0.97") from error
    show_report(dirs, options.get("out"), goal, options.get("sort"))
    return 0
