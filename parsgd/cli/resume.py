"""``parsgd train resume=DIR``: the command line of a run that goes on."""

import contextlib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from parsgd.checkpoint.names import read_meta, steps_in
from parsgd.config.overrides import is_override, overrides, quoted, typed
from parsgd.errors import UserError
from parsgd.flat import OWN, under
from parsgd.results.writing import CHECKPOINTS, CONFIG, OVERRIDES


def resumed(arguments: Sequence[str]) -> list[str]:
    """Replace ``resume=DIR`` by the overrides that the run in DIR was started with.

    ``step=best``, or another, beside it is ``checkpoint.step``. What else is given
    comes after them, and in place of those of the same key. It is one run, also where
    it was a job of a sweep that an experiment's file asks for.

    Raises:
        UserError: There is no run in DIR to go on with.
    """
    found = [a for a in arguments if a.startswith("resume=")]
    if not found:
        return list(arguments)
    others = [
        f"checkpoint.{a}" if a.startswith("step=") else a
        for a in arguments
        if a not in found
    ]
    if len(found) > 1 or "-m" in others or "--multirun" in others:
        raise UserError(
            f"{' '.join(found)}: one run goes on at a time; a sweep does with "
            "hydra.sweep.dir=DIR and its own command"
        )
    folder = Path(_unquoted(found[0].removeprefix("resume=")))
    if not folder.is_dir():
        raise UserError(f"{found[0]}: there is no such folder; give that of a run")
    if folder.resolve().name == CHECKPOINTS and has_checkpoints(folder / ".."):
        raise UserError(
            f"{found[0]}: that is within the folder of a run; give the run's own, "
            f"{typed('resume', folder.resolve().parent)}"
        )
    if not has_checkpoints(folder):
        raise UserError(
            f"{found[0]}: it holds no checkpoint, so there is nothing to go on from. "
            "Runs save with checkpoint.rounds=N or checkpoint.minutes=M"
        )
    before = _overrides(folder, _step_given(others))
    keys = {*_keys(others)}
    if "hydra.run.dir" in keys:
        raise UserError(
            f"{found[0]} and hydra.run.dir: a run goes on in its own folder; copy the "
            "folder to have both, or leave resume= out for a new run elsewhere"
        )
    mine = any(a.startswith(("--config-name", "-cn")) for a in others)
    kept = [
        o for o in before if not (mine if _named(o) else keys.intersection(_keys([o])))
    ]
    where = f"hydra.run.dir={quoted(folder.resolve())}"
    return [*kept, *others, "hydra.mode=RUN", where]


def _step_given(arguments: Sequence[str]) -> float:
    """The step to go on from, if a number is given; else infinity."""
    for override in overrides(arguments):
        if override.key_or_group == "checkpoint.step":
            given = override.value()
            return given if isinstance(given, int) else math.inf
    return math.inf


def _overrides(folder: Path, given_step: float) -> list[str]:
    """The command line in the newest checkpoint that can be read.

    Args:
        folder: Of the run.
        given_step: From which it is to go on, or infinity.
    """
    where, lost = folder / CHECKPOINTS, []
    for step in steps_in(where):
        config: Any = None
        try:
            meta = read_meta(where, step)
            config = meta["config"]
            if config is None:
                break
            given = [str(o) for o in meta["overrides"]]
            if not lost and _was_last(folder, config) is False:
                # Begun with other options, and ended before it saved.
                given = [*filter(_named, given), *(_begun_with(folder) or given)]
            overrides(given)  # or it cannot be read
        except (OSError, ValueError, KeyError, TypeError):
            lost.append(step)  # the run itself tells what is wrong with it
            continue
        if lost and step < given_step:
            _refuse_older(folder, lost[0], step, config)
        return [o for o in given if _named(o) or _may_be_repeated(folder, o)]
    else:
        raise UserError(
            f"resume={folder}: none of its checkpoints can be read; bring them back "
            "from a copy, or give the whole command with hydra.run.dir to see what is "
            "wrong"
        )
    raise UserError(
        f"resume={folder}: it was saved by a script, whose strategy no config "
        "describes: run the script again, and it goes on"
    )


def _was_last(folder: Path, config: Any) -> bool | None:
    """Whether the last run in a folder had this config; None if that is unknown."""
    from parsgd.cli.earlier import is_same

    begun = _yaml(folder / CONFIG)
    return is_same(begun, config) if isinstance(begun, dict) else None


def _begun_with(folder: Path) -> list[str] | None:
    """The command line of the last run that began to train in a folder."""
    given = _yaml(folder / OVERRIDES)
    return [str(o) for o in given] if isinstance(given, list) else None


def _yaml(file: Path) -> Any:
    """What a file holds; None if that cannot be read."""
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        return yaml.safe_load(file.read_text())
    return None


def _named(option: str) -> bool:
    """Whether it is the name of the user's own primary config."""
    return bool(re.fullmatch(r"--config-name=\w[\w-]*(/\w[\w-]*)*", option))


def _may_be_repeated(folder: Path, argument: str) -> bool:
    """Whether an override that a folder holds is given again.

    What a folder says must not choose code. So it chooses no part of Hydra, which call
    some, and no file but those that this command is told to look for choices in.

    Raises:
        UserError: It names another file.
    """
    if not is_override(argument):
        return False
    # Once is enough: what goes on then is what was begun there. Processes are found,
    # and messages shown, as this command says.
    left_out = ("checkpoint.step", "checkpoint.force", "hydra", *OWN)
    (override,) = overrides([argument])
    package = (override.package or "").removeprefix("_global_.")
    places = (override.key_or_group, package)
    if any(under(place.replace("/", ".").lstrip("."), left_out) for place in places):
        return False
    group, value = str(override.key_or_group), override.value()
    names = [str(name) for name in (value if isinstance(value, list) else [value])]
    if ("." not in group or "/" in group) and any(
        name.startswith("/") or ".." in name.split("/") or "${" in name
        for name in (*names, package)
    ):
        raise UserError(
            f"resume={folder}: its command has {argument}, a file outside of the "
            "folders that choices come from; give the whole command with "
            f"{typed('hydra.run.dir', folder)} if you trust it"
        )
    return True


def _refuse_older(folder: Path, lost: int, step: int, config: Any) -> None:
    """Refuse an older checkpoint's command line, if the last run had another config."""
    file = folder / CONFIG
    if _was_last(folder, config):
        return
    raise UserError(
        f"resume={folder}: the checkpoint of step {lost} cannot be read, and the one "
        f"before, of step {step}, was saved with other options than the last run's, "
        f"which are in {file}: repeat that run's whole command with "
        f"{typed('hydra.run.dir', folder)}, or give step={step} to go on from "
        "there with the options of then"
    )


def _unquoted(text: str) -> str:
    """A value without the quotes that Hydra wants around odd ones."""
    quote = text[:1]
    if len(text) > 1 and quote in "'\"" and text.endswith(quote):
        inside = text[1:-1].replace(f"\\{quote}", quote)
        return inside.replace("\\\\", "\\")
    return text


def has_checkpoints(folder: Path) -> bool:
    """Whether a run's folder holds a checkpoint."""
    return bool(steps_in(folder / CHECKPOINTS))


def _keys(arguments: Sequence[str]) -> list[str]:
    """The keys of what are overrides among the arguments."""
    return [str(override.key_or_group) for override in overrides(arguments)]
