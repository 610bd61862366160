"""``parsgd list``: the choices of each config group, with a line about each."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from parsgd.errors import UserError

USAGE = """\
usage: parsgd list [--config-dir DIR] [GROUP ...]

Lists the choices of a group, or of all: GROUP=CHOICE selects one, as in
`parsgd train strategy=local_sgd task=digits`. With --config-dir, those in a folder of
your own too.
"""


def show(arguments: list[str]) -> int:
    """Print the choices of the groups that are named, or of all."""
    if any(a in ("-h", "--help") for a in arguments):
        print(USAGE, end="")
        return 0
    folder, groups = config_dir(arguments)
    found = choices(conf_dir())
    for group, names in choices(folder).items() if folder else ():
        found[group] = dict(sorted((found.get(group, {}) | names).items()))
    for group in groups:
        if group.startswith("-"):
            raise UserError(f"{group}: parsgd list has no such option, see --help")
        if group not in found:
            raise UserError(f"{group}: there is no such group: {', '.join(found)}")
    for group in groups or found:
        print(f"{'+' if group == 'experiment' else ''}{group}=")
        width = max(map(len, found[group]))
        for name, text in found[group].items():
            print(f"  {name:<{width}}  {text}")
    sys.stdout.flush()
    return 0


def conf_dir() -> Path:
    """The shipped configs: inside an installed package, else the repository's."""
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def choices(conf: Path) -> dict[str, dict[str, str]]:
    """The choices of each group with what a line says of each."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(conf.rglob("*.yaml")):
        group = path.parent.relative_to(conf).as_posix()
        if group != ".":
            found.setdefault(group, {})[path.stem] = _description(path)
    return found


def config_dir(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Take ``--config-dir DIR`` out of a command line.

    Returns:
        The folder, or None; and the other arguments.

    Raises:
        UserError: There is no such folder, or it would be ignored in part.
    """
    folders, others = [], []
    left = iter(arguments)
    for argument in left:
        flag, equals, value = argument.partition("=")
        if flag in ("--config-dir", "-cd"):
            folders.append(value if equals else next(left, ""))
        else:
            others.append(argument)
    if not folders:
        return None, others
    if len(folders) > 1:
        raise UserError(
            f"--config-dir is given {len(folders)} times ({', '.join(folders)}): put "
            "the files into one folder"
        )
    folder = Path(folders[0])
    if not folders[0] or not folder.is_dir():
        raise UserError(
            f"--config-dir {folders[0] or 'DIR'}: there is no such folder. It holds "
            "choices of your own, laid out like conf/, such as strategy/NAME.yaml"
        )
    _refuse_hidden(folder)
    return folder, others


def _refuse_hidden(folder: Path) -> None:
    """Of two files with one name Hydra would take the shipped one without a word."""
    for path in sorted(folder.rglob("*.yaml")):
        shipped = conf_dir() / path.relative_to(folder)
        if shipped.is_file() and shipped.read_bytes() != path.read_bytes():
            raise UserError(
                f"{path} has the name of a shipped file, which would be taken in its "
                "place: give yours another name"
            )


def _description(path: Path) -> str:
    """A file's first line of comment, else what it calls, else its first value."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ")
    for line in lines:
        if match := re.search(r"_target_: *([\w.]+)", line):
            return match[1]
    return next((s for s in map(str.strip, lines) if s and s[0] != "#"), "")
