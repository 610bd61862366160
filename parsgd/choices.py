"""``parsgd list``: the choices of each config group, with their first line."""

import sys
from pathlib import Path

from parsgd.errors import UserError

USAGE = """\
usage: parsgd list [GROUP]

Lists the choices of a group, or of all: GROUP=CHOICE selects one, as in
`parsgd train strategy=local_sgd task=digits`.
"""


def show(arguments: list[str]) -> int:
    """Print the choices of the groups that are named, or of all."""
    if any(a in ("-h", "--help") for a in arguments):
        print(USAGE, end="")
        return 0
    from parsgd.config import conf_dir

    found = choices(conf_dir())
    for group in arguments or found:
        if group not in found:
            raise UserError(f"{group}: there is no such group: {', '.join(found)}")
        print(f"{'+' if group == 'experiment' else ''}{group}=")
        width = max(map(len, found[group]))
        for name, text in found[group].items():
            print(f"  {name:<{width}}  {text}")
    sys.stdout.flush()
    return 0


def choices(conf: Path) -> dict[str, dict[str, str]]:
    """The choices of each group with their first line of comment."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(conf.rglob("*.yaml")):
        group = path.parent.relative_to(conf).as_posix()
        if group != ".":
            found.setdefault(group, {})[path.stem] = _first_comment(path)
    return found


def _first_comment(path: Path) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ")
    return ""
