"""What Hydra and OmegaConf complain about, in the user's terms."""

import difflib
import re
from collections.abc import Iterable, Sequence

from hydra.errors import (
    ConfigCompositionException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import OmegaConfBaseException


def explain(error: BaseException) -> str:
    """One message for an error that a user can mend: what, why, what to do."""
    if isinstance(error, MissingConfigException):
        return _missing(error)
    if isinstance(error, OverrideParseException):
        return (
            f"cannot read the argument {error.override!r}: arguments look like "
            "key=value, and lists with spaces need quotes"
        )
    text = _first_line(error).removeprefix("Error merging override ")
    if match := re.match(r"Could not append to config\. .* '(.+)'", text):
        return f"{match[1]} exists already: leave out the + before it"
    if match := re.match(r"Ambiguous value for argument '(.+)'", text):
        return (
            f"{match[1]} gives several values: add -m to sweep over them, or write "
            "[a,b] for one value that is a list"
        )
    if match := re.match(r"Could not override '(.+?)'\.? ?(.*)", text):
        return _not_overridable(match[1], error.__cause__)
    cause = error.__cause__
    if isinstance(error, ConfigCompositionException) and cause is not None:
        text = f"{text}: {_first_line(cause)}"
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
    wanted = error.missing_cfg_file or ""
    group, _, name = wanted.rpartition("/")
    options = sorted(error.options or ())
    if not group or not options:
        return _first_line(error)
    return (
        f"{group}={name}: there is no such {group}. Choose one of "
        f"{', '.join(options)}.{nearest(name, options)}"
    )


def _not_overridable(key: str, cause: BaseException | None) -> str:
    parent, _, name = key.rpartition(".")
    if not isinstance(cause, OmegaConfBaseException):
        return (
            f"{key}: there is no such group of configs; `parsgd list` shows the groups."
        )
    if "is not in struct" not in str(cause) and "not in" not in str(cause):
        return f"{key}: {_first_line(cause)}"
    keys = _siblings(cause)
    where = f" in {parent}" if parent else ""
    listed = f" It has {', '.join(keys)}." if keys else ""
    text = f"{key}: there is no key {name!r}{where}.{nearest(name, keys)}{listed}"
    return f"{text} (+{key}=... hands it on all the same)" if parent else text


def _siblings(cause: OmegaConfBaseException) -> Sequence[str]:
    node = cause.parent_node
    try:
        keys = [str(key) for key in node]  # type: ignore[union-attr]
    except (AttributeError, OmegaConfBaseException):
        return []
    return sorted(key for key in keys if key != "hydra" and not key.startswith("_"))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
