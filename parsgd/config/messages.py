"""What Hydra and OmegaConf complain about, in the user's terms."""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import ChoiceSweep, Glob
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from parsgd.config import schema
from parsgd.config.choices import choices, conf_dir, config_dir
from parsgd.config.overrides import overrides, searched, typed
from parsgd.errors import UserError, first_line

# As Hydra's errors of no type of their own begin.
_NO_CHOICE = "Config group override must be a string"
_TOO_MANY = "Only one of --run, --multirun, --cfg"

_VALUES = {
    "could not be converted to Integer": "give a whole number",
    "could not be converted to Float": "give a number",
    "is not a valid bool": "give true or false",
    "Cannot convert '.+' to string": "give a word",
    "is not Optional": "it cannot be null: leave it out to have the default",
}

# What papers call the sizes of a run.
SIZES_BY_NAME = {
    "H": "local_steps",
    "K": "workers",
    "W": "workers",
    "B": "global_batch",
    "b": "worker_batch",
    "local_steps": "local_steps",
    "workers": "workers",
}

# Launchers and sweepers that extras of parsgd bring.
PLUGINS = {
    "joblib": "joblib",
    "submitit_slurm": "submitit",
    "submitit_local": "submitit",
    "ray": "ray",
    "optuna": "optuna",
}


def is_mistake(error: BaseException) -> bool:
    """Whether `explain` has words for it: a user's mistake, not a fault."""
    known = UserError | HydraException | OmegaConfBaseException
    return isinstance(error, known) or str(error).startswith((_NO_CHOICE, _TOO_MANY))


def explain(error: BaseException, arguments: Sequence[str] = ()) -> str:
    """One message for an error that a user can mend: what, why, what to do.

    Args:
        error: For which `is_mistake` holds.
        arguments: The command line, where it may help to say which one is meant.
    """
    if isinstance(error, UserError):
        return str(error)
    if str(error).startswith(_NO_CHOICE):
        return _no_choice(arguments)
    if str(error).startswith(_TOO_MANY):
        return (
            "--cfg and --info show a config and run nothing: leave out -m (--multirun) "
            "and --run, or leave out these; -m --dry-run lists a sweep's jobs"
        )
    if isinstance(error, MissingConfigException):
        text = _missing(error)
        if any(a.startswith("resume=") for a in arguments):
            text = f"give --config-dir again, if the run had one. {text}"
        return text
    if isinstance(error, OverrideParseException):
        key, equals, value = str(error.override).partition("=")
        if equals and value[:1] not in ("[", "{"):
            return (
                f"cannot read the argument {error.override!r}: its value needs quotes "
                f"of its own beside the shell's: {typed(key, value)}"
            )
        return (
            f"cannot read the argument {error.override!r}: arguments look like "
            "key=value, and lists with spaces need quotes"
        )
    text = first_line(error).removeprefix("Error merging override ")
    if match := re.match(r"Interpolation key '(optimizer\.\w+)' not found", text):
        return (
            f"the strategy takes {match[1]}, which the chosen optimizer does not have: "
            "use optimizer=adam"
        )
    if match := re.match(r"Could not append to config\. .* '(.+)'", text):
        return f"{match[1]} exists already: leave out the + before it"
    if match := re.match(r"Ambiguous value for argument '(.+)'", text):
        return _several(match[1], arguments)
    if match := re.match(r"Could not delete from config\. '(.+)' does not", text):
        return (
            f"~{match[1]}: there is nothing to delete: either there is no such key, or "
            f"it is null already. Leave it out, or give a value with {match[1]}=VALUE"
        )
    if match := re.match(r"In '(.+)': \w+ raised while composing config", text):
        return _in_file(match[1], error)
    if match := re.match(r"Could not override '(.+?)'\.? ?(.*)", text):
        return _not_overridable(match[1], error.__cause__, arguments)
    cause = error.__cause__
    if isinstance(error, ConfigCompositionException) and cause is not None:
        text = f"{text}: {_about_value(first_line(cause))}"
    elif isinstance(error, OmegaConfBaseException) and error.full_key:
        text = f"{error.full_key}: {text}"
    return text


def nearest(word: str, choices: Iterable[str]) -> str:
    """``" Did you mean x?"``, or nothing where no choice is near.

    Example:
        >>> nearest("wokers", ["workers", "seed"])
        ' Did you mean workers?'
    """
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def _missing(error: MissingConfigException) -> str:
    match = re.search(r"Could not load '(.+?)'", str(error))
    wanted = error.missing_cfg_file or (match[1] if match else "")
    group, _, name = wanted.rpartition("/")
    # Hydra names none where a list was given.
    options = sorted(error.options or choices(conf_dir()).get(group, ()))
    if not group or not (options or name in PLUGINS):
        return first_line(error)
    if group.startswith("hydra/") and name in PLUGINS:
        return (
            f"{group}/{name} is a plugin of Hydra's that is not installed: "
            f"pip install 'parsgd[{PLUGINS[name]}]'"
        )
    return _no_such(group, name, options)


def _no_such(group: str, name: str, options: Sequence[str]) -> str:
    return (
        f"{group}={name}: there is no such {group}. Choose one of "
        f"{', '.join(options)}.{nearest(name, options)} A file of your own is found "
        "with --config-dir FOLDER"
    )


def _several(argument: str, arguments: Sequence[str]) -> str:
    """Of a list of values without -m; of a key or value that is wrong all the same."""
    folder, given = config_dir(arguments)
    firsts = []
    for override in overrides(given):
        line = str(override.input_line)
        if override.is_sweep_override() and isinstance(override.value(), Glob):
            continue  # only what is there matches
        if override.is_sweep_override():
            line = f"{line.partition('=')[0]}={next(override.sweep_string_iterator())}"
        firsts.append(line)
    try:
        GlobalHydra.instance().clear()  # of the command that failed
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            hydra.compose("config", overrides=[*firsts, *searched(folder)])
    except Exception as error:
        if not is_mistake(error):
            raise
        return explain(error, firsts)
    return (
        f"{argument} gives several values: `parsgd train -m` sweeps over them, and "
        "[a,b] is one value that is a list"
    )


def _about_value(text: str) -> str:
    """What OmegaConf says of a value of the wrong kind, as what to give instead."""
    match = re.match(r"Value '(\d[\d.]*e\d+|\d+\.0+)' .* converted to Int", text)
    if match and (number := float(match[1])).is_integer() and number < 1e18:
        return f"write whole numbers out: {int(number)}"
    for pattern, wanted in _VALUES.items():
        if re.search(pattern, text):
            return wanted
    if match := re.search(r"is not a subclass of (\w+)\.", text):
        group = match[1].lower()
        keys = [f"{group}.{f.name}" for f in fields(getattr(schema, match[1]))]
        return f"{group} is a group of keys: give one or more of {', '.join(keys)}"
    return text


def _not_overridable(
    key: str, cause: BaseException | None, arguments: Sequence[str]
) -> str:
    group, _, name = key.partition(".")
    unused = not name or (
        isinstance(cause, OmegaConfBaseException) and not _siblings(cause)
    )
    if group in ("compressor", "feedback") and unused:
        key = group
        names = {*choices(conf_dir())["compressor"]}
        codes = sorted(names & _choices_of("strategy", arguments))
        both = f", as in strategy=compressed compressor={codes[0]}" if codes else ""
        return (
            f"{key}: the strategy has no exchangeable {key}, so nothing would use it. "
            "Those that have are strategy=compressed, compressed_local_sgd, "
            f"compressed_block_momentum and compressed_diloco{both}; to compare them "
            "with others sweep each apart, and then `parsgd report DIR DIR`"
        )
    if key == "experiment":
        return "experiment: it is added, not changed: write +experiment=NAME"
    if key == "network":
        return "network: that is the --link of `parsgd lab`; a run has no such key"
    if not isinstance(cause, OmegaConfBaseException):
        return (
            f"{key}: there is no such group of configs; `parsgd list` shows the groups."
        )
    if "not in" not in str(cause):
        return f"{key}: {_about_value(first_line(cause))}"
    # Of a.b.c it may be b that is missing.
    key = cause.full_key or key
    parent, _, name = key.rpartition(".")
    keys = _siblings(cause)
    target = _target(cause)
    where = f" in {parent}" if parent else ""
    where += f", which is {target} here" if target else ""
    there = f"{target or 'It'} has" if parent else "There are"
    listed = f" {there} {', '.join(keys)}." if keys else ""
    if parent == "strategy" and (size := SIZES_BY_NAME.get(name)):
        return f"{key}: that is a size of the run, not of its strategy: {size}=VALUE"
    text = f"{key}: there is no key {name!r}{where}.{nearest(name, keys)}{listed}"
    if parent and len(_choices_of(parent, arguments)) > 1:
        return (
            f"{text} A sweep sets a key in all of its jobs: what only one {parent} "
            "has, sweep by itself; `parsgd report DIR DIR` compares the sweeps"
        )
    if not parent:
        return text
    from parsgd.config.targets import takes  # which asks this module for words

    if target.partition(".")[0] == "parsgd" and not takes({"_target_": target}, name):
        return f"{text} Nor does it take one that the config leaves out"
    return f"{text} An argument that the chosen file leaves out takes a +: +{key}=..."


def _target(cause: OmegaConfBaseException) -> str:
    node = cause.parent_node
    found = node.get("_target_") if isinstance(node, DictConfig) else None
    return str(found or "")


def _choices_of(group: str, arguments: Sequence[str]) -> set[str]:
    """The choices of a group that a command line, or a list of its jobs, names."""
    given = [a.partition("=") for a in arguments]
    return {
        name for key, _, value in given if key == group for name in value.split(",")
    }


def _no_choice(arguments: Sequence[str]) -> str:
    groups = choices(conf_dir())
    for given in overrides(arguments):
        if given.is_delete():
            continue
        value, group = given.value(), given.key_or_group
        values = value.list if isinstance(value, ChoiceSweep) else [value]
        if not group:
            return f"{given.input_line}: there is no key before the = sign"
        if group in groups and not all(isinstance(v, str | list) for v in values):
            names = ", ".join(groups[group])
            return f"{given.input_line}: {group} takes the name of a choice: {names}"
    return "a group takes the name of one of its choices; `parsgd list` shows them"


def _in_file(file: str, error: BaseException) -> str:
    text = [line.strip() for line in str(error).splitlines()][1]
    match = re.match(r"Key '(.+)' not in 'Config'", text)
    if match and match[1] == file.partition("/")[0]:
        return (
            f"{file}.yaml does not begin with `# @package _global_`, so that all its "
            f"keys went below {match[1]}, where nothing reads them. Make that comment "
            "the very first line of the file, before any other comment"
        )
    return f"{file}.yaml: {text}"


def _siblings(cause: OmegaConfBaseException) -> Sequence[str]:
    node = cause.parent_node
    try:
        keys = [str(key) for key in node]  # type: ignore[union-attr]
    except (AttributeError, OmegaConfBaseException):
        return []
    return sorted(key for key in keys if key != "hydra" and not key.startswith("_"))
