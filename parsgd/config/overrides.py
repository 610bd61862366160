"""Command lines as Hydra reads them: which arguments are overrides, and quotes."""

from collections.abc import Iterable
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override


def is_override(argument: str) -> bool:
    """Whether an argument changes the config, and is no option.

    Example:
        >>> [is_override(a) for a in ("workers=4", "~scaling", "-m", "--cfg=job", "x")]
        [True, True, False, False, False]
    """
    return argument[:1] != "-" and ("=" in argument or argument[:1] == "~")


def overrides(arguments: Iterable[str]) -> list[Override]:
    """What the overrides among the arguments say."""
    chosen = [a for a in arguments if is_override(a)]
    return OverridesParser.create().parse_overrides(chosen)


def searched(folder: Path | None) -> list[str]:
    """The override that has Hydra look for configs in a folder of the user's too."""
    if folder is None:
        return []
    return [f"hydra.searchpath=[{quoted(f'file://{folder.resolve()}')}]"]


def quoted(text: object) -> str:
    r"""A value, such as a path, that Hydra takes as it is.

    Example:
        >>> print(quoted("my runs, Bob's"))
        'my runs, Bob\'s'
    """
    inside = str(text).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{inside}'"
