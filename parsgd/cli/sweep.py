"""What happens around the jobs of a sweep, as a Hydra callback.

Before: the number of jobs is printed, a dry run lists them, a folder that holds another
sweep is refused, and CPU devices are made for the largest of the jobs that run in this
process. After: the table, the page, and an exit code that tells whether a job failed.

Hydra turns exceptions of callbacks into warnings, so what must stop the command leaves
as ``SystemExit``.
"""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from parsgd import cluster
from parsgd.cli import launchers, search
from parsgd.cli.earlier import ended
from parsgd.cli.report import show_report
from parsgd.cli.sweep_folder import (
    SWEPT,
    clear_refused,
    held,
    make_folder,
    named,
    refuse_other_sweep,
    refuse_run,
    tell_refused,
)
from parsgd.config.messages import explain, is_mistake
from parsgd.config.objects import check
from parsgd.errors import UserError
from parsgd.words import counted

_folders: list[Path] = []


def last_folder() -> Path | None:
    """Where the last sweep of this process began."""
    return _folders[-1] if _folders else None


class Sweep(Callback):
    """The callback that ``conf/config.yaml`` registers.

    Args:
        dry_run: List the jobs and stop; the command's ``--dry-run``.
    """

    def __init__(self, dry_run: bool = False):
        self._dry_run = dry_run
        self._held: list[int] = []

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """A single run: one job."""
        del kwargs
        try:
            if self._dry_run:
                own = [str(key) for key in config if key != "hydra"]
                check(OmegaConf.masked_copy(config, own))
                _list_jobs([OmegaConf.to_container(config.hydra.overrides.task)])  # type: ignore[list-item]
                raise SystemExit(0)
            launcher = config.hydra.runtime.choices["hydra/launcher"]
            if launcher != "basic":
                raise UserError(
                    f"hydra/launcher={launcher}: a launcher starts the jobs of a "
                    "sweep, and this is one run: add -m, or leave it out"
                )
            launchers.make_devices([config.placement.devices])
            folder = named(config.hydra.run.dir, "hydra.run.dir")
            if (folder / SWEPT).is_file():
                raise UserError(
                    f"{folder} is the folder of a sweep, and a run in it would count "
                    "as one of its jobs: choose another with hydra.run.dir=DIR"
                )
            make_folder(folder, "hydra.run.dir")
        except UserError as error:
            if cluster.is_first():
                print(f"parsgd: {error}", file=sys.stderr)
            raise SystemExit(2) from error

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Count, check and maybe list the jobs; make the devices they need."""
        del kwargs
        jobs: list[list[str]] | None = []
        try:
            launchers.check(config.hydra)
            jobs = sweep_jobs(config)
            if jobs is None:
                search.check(config.hydra.sweeper)
            if jobs == []:
                raise UserError(
                    "the sweep has no jobs: glob(...) matches choices of a group, "
                    "and matches none here; `parsgd list` shows them"
                )
            if jobs is None and self._dry_run:
                print("hydra/sweeper chooses each job by those before: none to list")
                raise SystemExit(0)
            folder = named(config.hydra.sweep.dir, "hydra.sweep.dir")
            refuse_run(folder)
            if jobs is None:
                others = launchers.by_environment(config.hydra)
                launchers.make_devices([config.placement.devices], others)
                self._hold(folder, config)
                launchers.tell_limit(config.hydra)
                return
            refuse_other_sweep(folder, jobs)
            if self._dry_run:
                _refuse_if_all_wrong(config, jobs)
                composed = enumerate(_composed(config, jobs))
                _list_jobs(jobs, [ended(folder / f"{n}", cfg) for n, cfg in composed])
                raise SystemExit(0)
            values = [_override(job, "placement.devices") for job in jobs]
            others = launchers.by_environment(config.hydra)
            launchers.make_devices([config.placement.devices, *values], others)
            _refuse_if_all_wrong(config, jobs)
            self._hold(folder)
            refuse_other_sweep(folder, jobs)  # that began meanwhile
            if cluster.is_first():
                print(f"{counted(len(jobs), 'job')} in {folder}", flush=True)
                launchers.tell_limit(config.hydra)
        except Exception as error:
            if not is_mistake(error):
                raise
            overrides = [override for job in jobs or () for override in job]
            if cluster.is_first():
                print(f"parsgd: {explain(error, overrides)}", file=sys.stderr)
            raise SystemExit(2) from error

    def _hold(self, folder: Path, searching: DictConfig | None = None) -> None:
        """Keep the folder for this sweep until the command ends.

        Args:
            folder: Of the sweep.
            searching: The config of a search.
        """
        reason = ""
        if searching is None or search.repeatable(searching.hydra.sweeper):
            _folders.append(folder)
        if cluster.is_first():
            try:
                make_folder(folder, "hydra.sweep.dir")
                if searching is not None:
                    search.refuse_used(folder, searching)
                self._held.append(held(folder))
                clear_refused(folder)
                if searching is not None:
                    search.refuse_used(folder, searching)  # of one that began meanwhile
                    search.keep(folder, searching)
            except (UserError, OSError) as error:
                reason = str(error)
        if reason := cluster.agree("sweep", reason):
            raise UserError(reason)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Build and show the report; exit with 1 if a job failed or diverged."""
        del kwargs
        while self._held:
            os.close(self._held.pop())
        code = 0
        if cluster.is_first():
            with cluster.busy():
                code = self._report(config) or int(launchers.lost())
        if int(cluster.agree("report", str(code))):
            raise SystemExit(1)

    def _report(self, config: DictConfig) -> int:
        folder = Path(config.hydra.sweep.dir)
        try:
            try:
                bad = show_report([folder])
            finally:
                refused = tell_refused(folder)
            search.drop_best_of_none(folder)
            return min(1, bad + refused)
        except UserError as error:
            print(f"parsgd: {error}", file=sys.stderr)
        except Exception as error:
            # Hydra would warn and end with 0.
            if config.get("debug"):
                traceback.print_exc()
            print(
                f"parsgd: the report failed: {type(error).__name__}: {error}\n"
                f"The jobs' results are in {folder}",
                file=sys.stderr,
            )
        return 1


def sweep_jobs(config: DictConfig) -> list[list[str]] | None:
    """The overrides of each job, or None where a sweeper decides as it goes."""
    sweeper = config.hydra.sweeper
    if search.searches(sweeper):
        return None
    params = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    texts = [*params, *OmegaConf.to_container(config.hydra.overrides.task)]  # type: ignore[misc]
    # It knows the choices of a group, for glob(*).
    loader = GlobalHydra.instance().config_loader()
    overrides = OverridesParser.create(loader).parse_overrides(texts)
    # Hydra has no public way to know its jobs before it runs them.
    batches = BasicSweeper.split_arguments(overrides, None)
    return [job for batch in batches for job in batch]


def _list_jobs(jobs: Sequence[Sequence[str]], before: Sequence[str] = ()) -> None:
    """Print the jobs, and beside those that will be skipped how they ended before."""
    if not cluster.is_first():
        return
    due = f", {[*before].count('')} to run" if any(before) else ""
    print(f"{counted(len(jobs), 'job')}{due}")
    for number, job in enumerate(jobs):
        status = f" ({before[number]} before)" if before and before[number] else ""
        print(f"#{number} {' '.join(job)}".rstrip() + status)
    if any(before):
        print(
            "jobs whose data, or own code, have changed since are found as they start"
        )


def _composed(
    config: DictConfig, jobs: Sequence[Sequence[str]]
) -> Iterator[DictConfig]:
    """The config of each job; a job's mistakes show where it is composed."""
    common = [str(override) for override in config.hydra.overrides.hydra]
    for job in jobs:
        yield compose(config.hydra.job.config_name, overrides=[*common, *job])


def _refuse_if_all_wrong(config: DictConfig, jobs: Sequence[Sequence[str]]) -> None:
    """Say once what each job would fail with; a mistake of some is theirs alone."""
    reasons = set()
    for cfg in _composed(config, jobs):
        try:
            check(cfg)
        except UserError as error:
            reasons.add(str(error))
        else:
            return
        if len(reasons) > 1:
            return
    for reason in reasons:
        raise UserError(f"{reason} (so in all {counted(len(jobs), 'job')})")


def _override(job: Sequence[str], key: str) -> Any:
    for override in OverridesParser.create().parse_overrides(list(job)):
        if override.key_or_group == key:
            value = override.value()
            return value if not isinstance(value, float) else None
    return None
