"""Command lines as Hydra reads them: which arguments are overrides, and quotes."""

import difflib
import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException

from parsgd.errors import UserError
from parsgd.flat import UNSTORED, under


def is_override(argument: str) -> bool:
    """Whether an argument changes the config, and is no option.

    Example:
        >>> [is_override(a) for a in ("workers=4", "~scaling", "-m", "--cfg=job", "x")]
        [True, True, False, False, False]
    """
    return argument[:1] != "-" and ("=" in argument or argument[:1] == "~")


def refuse_option(
    command: str, argument: str, known: Sequence[str], takes: str = "a folder"
) -> None:
    """Refuse what is no folder, but looks like an option that is written wrongly.

    Args:
        command: Which has the options.
        argument: As given.
        known: Names of its options, as in ``NAME=VALUE``.
        takes: What it takes beside them.

    Raises:
        UserError: Names the nearest of them, and all.
    """
    key = argument.lstrip("-").partition("=")[0]
    is_path = os.path.exists(argument) or os.sep in key
    if is_path or not (argument[:1] == "-" or "=" in argument):
        return
    near = difflib.get_close_matches(key, known, n=1)
    guess = f"; did you mean {near[0]}=...?" if near else "."
    raise UserError(
        f"{argument}: parsgd {command} has no such option{guess} It takes {takes} and "
        f"{', '.join(f'{name}=...' for name in known)}; see `parsgd {command} --help`"
    )


def trained(given: Iterable[str]) -> list[str]:
    """Of overrides those that decide what is run, sorted."""
    parsed = overrides(given)
    return sorted(
        str(o.input_line) for o in parsed if not under(o.key_or_group, UNSTORED)
    )


def overrides(arguments: Iterable[str]) -> list[Override]:
    """What the overrides among the arguments say."""
    chosen = [a for a in arguments if is_override(a)]
    return OverridesParser.create().parse_overrides(chosen)


def searched(folder: Path | None) -> list[str]:
    """The override that has Hydra look for configs in a folder of the user's too."""
    if folder is None:
        return []
    return [f"hydra.searchpath=[{quoted(f'file://{folder.resolve()}')}]"]


def typed(key: str, value: object) -> str:
    r"""An override as one types it in a shell, with the quotes that it needs.

    Example:
        >>> print(typed("hydra.run.dir", "runs/1"), typed("hydra.run.dir", "a b,c"))
        hydra.run.dir=runs/1 'hydra.run.dir='"'"'a b,c'"'"''
    """
    text = f"{key}={value}"
    try:
        (read,) = overrides([text])
        plain = not read.is_sweep_override() and str(read.value()) == str(value)
    except OverrideParseException:
        plain = False
    return shlex.quote(text if plain else f"{key}={quoted(value)}")


def quoted(text: object) -> str:
    r"""A value, such as a path, that Hydra takes as it is.

    Example:
        >>> print(quoted("my runs, Bob's"))
        'my runs, Bob\'s'
    """
    inside = str(text).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{inside}'"
