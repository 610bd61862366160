"""``parsgd export`` and ``evaluate``: the model in a run's checkpoints."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from omegaconf import DictConfig

from parsgd import cluster
from parsgd.checkpoint import leaves
from parsgd.checkpoint.agreed import by_the_first, offered
from parsgd.checkpoint.differences import SOURCES
from parsgd.checkpoint.quiet import quiet
from parsgd.checkpoint.settings import check_format
from parsgd.checkpoint.store import Store
from parsgd.cli import model_files
from parsgd.cli.commands import cluster_settings
from parsgd.cli.saving import POSITION
from parsgd.cluster.alike import check_alike
from parsgd.config.choices import config_dir
from parsgd.config.objects import build, plan_of
from parsgd.config.overrides import refuse_option
from parsgd.config.targets import ALLOWED, named_packages
from parsgd.core import Params, State, phases
from parsgd.data.checksum import data_checksum
from parsgd.data.dataset import Split
from parsgd.errors import UserError, first_line
from parsgd.flat import OWN
from parsgd.placement.devices import prepare
from parsgd.results.writing import CHECKPOINTS, METRICS
from parsgd.tasks import Task
from parsgd.training.engine import Engine
from parsgd.training.evaluate import evaluator
from parsgd.training.segments import phase_at
from parsgd.words import counted

EXPORT = """\
usage: parsgd export DIR [step=latest|best|STEP] [out=DIR] [--config-dir DIR]
                     [task.path=FILE | task.data_dir=DIR]

Writes the model of a run that saved checkpoints: the average that its strategy reads
out, not one worker's copy. As model.safetensors, and as an Orbax checkpoint in `orbax`,
into DIR/export or out=DIR. Names are params/... and, of batch statistics, model/...
A run with parts of your own needs the --config-dir, or the key._target_=name, of its
command, which say what code may be called. Data that have moved since are named by
task.path or task.data_dir.

  parsgd export outputs/2026-01-31/12-00-00-000000
  parsgd export outputs/2026-01-31/12-00-00-000000 step=best out=digits
"""
EVALUATE = """\
usage: parsgd evaluate DIR [step=latest|best|STEP] [--config-dir DIR]
                       [task.path=FILE | task.data_dir=DIR]

Scores the model of a run that saved checkpoints on all examples of both splits, over
all devices, also those of several processes that are started together (parsgd launch,
srun and others, cluster=none for one alone); each example counts once. A run with parts
of your own needs the --config-dir, or the key._target_=name, of its command. Data that
have moved since are named by task.path or task.data_dir.

  parsgd evaluate outputs/2026-01-31/12-00-00-000000 step=best
"""


class Model(NamedTuple):
    """A model as it was read from a checkpoint.

    Attributes:
        task: What it was trained for.
        params: Its parameters: the readout.
        state: Its other variables, averaged over the workers.
        step: Optimizer steps done.
        config: The config of the run.
    """

    task: Task
    params: Params
    state: State
    step: int
    config: dict[str, Any]


def export(arguments: list[str]) -> int:
    """Write the model; the console command."""
    return _command("export", arguments, EXPORT, ("step", "out"), _export)


def evaluate(arguments: list[str]) -> int:
    """Score the model; the console command."""
    return _command("evaluate", arguments, EVALUATE, ("step",), _evaluate)


def _command(
    name: str,
    arguments: list[str],
    usage: str,
    known: Sequence[str],
    act: Callable[[Path, dict[str, str], Sequence[str]], None],
) -> int:
    if not arguments or any(a in ("-h", "--help") for a in arguments):
        print(usage, end="")
        return 0 if arguments else 2
    own, words = config_dir(arguments)
    options, folders = {}, []
    for argument in words:
        key, equals, value = argument.partition("=")
        if equals and key in (*known, *SOURCES):
            options[key] = value
        # The former only name a package to trust.
        elif not key.endswith("_target_") and key.partition(".")[0] not in OWN:
            refuse_option(name, argument, (*known, *SOURCES))
            folders.append(argument)
    if len(folders) != 1:
        raise UserError(
            f"give one folder of a run, not {len(folders)} ({' '.join(folders)})\n"
            f"{usage}"
        )
    cluster.start(cluster_settings(arguments))
    parted = [word.partition("=") for word in words]
    check_alike({key: value for key, _, value in parted}, own=OWN)
    act(
        Path(folders[0]), options, ALLOWED + named_packages(words, [own] if own else [])
    )
    return 0


def load(
    folder: str | Path,
    step: str | int = "latest",
    *,
    allowed: Sequence[str] = ALLOWED,
    sources: Mapping[str, str] = MappingProxyType({}),
) -> Model:
    """The model of a run that saved checkpoints.

    Args:
        folder: Of the run, or of its checkpoints.
        step: ``"latest"``, ``"best"`` (of those whose evaluation is recorded) or a
            number of steps.
        allowed: Top-level packages whose functions its config may call.
        sources: Where the data lie now, by `SOURCES`.

    Raises:
        UserError: No such checkpoint, or one that cannot be read.
    """
    inside = Path(folder) / CHECKPOINTS
    where = inside if inside.is_dir() else Path(folder)
    if not where.is_dir():
        raise UserError(f"no folder {folder}: give the folder of a run")
    if jobs := sorted(path.parent for path in where.glob(f"*/{METRICS}")):
        raise UserError(
            f"{folder} is the folder of a sweep, or of several runs: give one of them, "
            f"such as {jobs[0]}"
        )
    # As many as there are cores, before the backend starts.
    prepare(None)
    with quiet():
        store = Store(where)
        try:
            return _load(store, str(step), allowed, sources)
        finally:
            store.close()


def _load(
    store: Store, step: str, allowed: Sequence[str], sources: Mapping[str, str]
) -> Model:
    _, chosen = offered(store, step, needed=True)
    meta = _read(store, chosen, store.meta)
    check_format(meta, store.folder)
    if meta["workers"] % cluster.processes():
        raise UserError(
            f"{store.folder} is of {counted(meta['workers'], 'worker')}, which "
            f"cannot be spread evenly over {cluster.processes()} processes: start one, "
            "or another number that divides the workers"
        )
    if not meta["config"]:
        raise UserError(
            f"{store.folder} was saved by a script, whose strategy no config describes:"
            " take the readout of its run there, `parsgd.fit(...).readout`"
        )
    config = meta["config"] | {"task": _moved(meta["config"]["task"], sources)}
    with cluster.busy():
        position = {key: meta[key] for key in POSITION}
        built = build(DictConfig(config), allowed=allowed, position=position)
        saved = meta["facts"].get("data_checksum")
        if cluster.is_first() and saved not in (None, data_checksum(built.task.data)):
            print("warning: these are other data than the model was trained on")
    plan = plan_of(built.task, built.arguments)
    engine = Engine(built.task, phases(built.strategy), order=plan.order)
    template = engine.init(jax.random.key(0))
    wanted = leaves.abstract(template)
    arrays = _read(store, chosen, lambda step: store.arrays(step, wanted))
    state = leaves.unpack(template, arrays)
    phase = phase_at(engine.worker.phases, chosen)
    params, model = engine.readout(state, phase)
    return Model(built.task, params, model, chosen, meta["config"])


def _moved(task: dict[str, Any], sources: Mapping[str, str]) -> dict[str, Any]:
    """The task of a config, with its data where they lie now."""
    given = {key.removeprefix("task."): value for key, value in sources.items()}
    if unknown := sorted(given.keys() - task.keys()):
        raise UserError(
            f"task.{unknown[0]}={given[unknown[0]]}: the task of this run, "
            f"{task.get('_target_')}, has no such key, so nothing would be read from "
            "there: leave it out"
        )
    return task | given


def _read(store: Store, step: int, read: Callable[[int], Any]) -> Any:
    try:
        with cluster.busy():
            return read(step)
    except Exception as error:
        others = [str(s) for s in store.steps() if s != step]
        instead = f"; others are of step {', '.join(others)}" if others else ""
        raise UserError(
            f"{store.folder / str(step)} cannot be read ({first_line(error)}){instead}"
        ) from error


def _asked_for(
    folder: Path, options: Mapping[str, str], allowed: Sequence[str]
) -> Model:
    step = options.get("step", "latest")
    sources = {key: options[key] for key in SOURCES if key in options}
    return load(folder, step, allowed=allowed, sources=sources)


def _export(folder: Path, options: dict[str, str], allowed: Sequence[str]) -> None:
    run = folder.parent if folder.name == CHECKPOINTS else folder
    out = Path(options.get("out", run / "export"))
    if options.get("out") == "":
        raise UserError("out= is empty: name the folder to write to, or leave it out")
    by_the_first(lambda: model_files.refuse_others(out))
    model = _asked_for(folder, options, allowed)
    if not cluster.is_first():  # each has all of the model
        return
    tree = {"params": model.params, "model": model.state}
    named = {
        name: np.asarray(x)
        for name, x in zip(leaves.names(tree), jax.tree.leaves(tree), strict=True)
    }
    about = {"task": model.task.name, "step": model.step, "config": model.config}
    model_files.write(out, named, about)
    size = sum(x.size for x in named.values())
    file, orbax = out / model_files.FILE, out / model_files.ORBAX
    print(f"step {model.step}, {counted(size, 'number')}: {file}")
    print(f"and as an Orbax checkpoint: {orbax}")


def _evaluate(folder: Path, options: dict[str, str], allowed: Sequence[str]) -> None:
    model = _asked_for(folder, options, allowed)
    where = counted(jax.device_count(), f"{jax.local_devices()[0].platform} device")
    if cluster.processes() > 1:
        where += f" of {cluster.processes()} processes"
    said = [f"{model.task.name}, step {model.step}, over {where}"]
    for name in ("train", "test"):
        split = getattr(model.task.data, name)
        found = _scores(model, split)
        scores = ", ".join(f"{key} {value:.6g}" for key, value in found.items())
        said.append(f"{name}: {scores} ({counted(len(split.x), 'example')})")
    if cluster.is_first():
        print("\n".join(said))


def _scores(model: Model, split: Split) -> dict[str, float]:
    """Means over a split, of whose rows each process takes its part."""
    count, number, of = len(split.x), cluster.process(), cluster.processes()
    own = slice(count * number // of, count * (number + 1) // of)
    part = Split(split.x[own], split.y[own])
    sums: dict[str, float] = {}
    if len(part.x):
        means = evaluator(model.task, part, devices=jax.local_devices())
        found = means(model.params, model.state)
        sums = {name: mean * len(part.x) for name, mean in found.items()}
    # As many rows for each, but not as fast a machine.
    texts = cluster.exchange("scores", json.dumps(sums), patient=True)
    parts = [each for each in map(json.loads, texts) if each]
    return {name: sum(each[name] for each in parts) / count for name in parts[0]}
