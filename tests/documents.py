"""Reads the Markdown documents: code blocks, commands, links and tables."""

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import yaml
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from parsgd.cli import commands as cli_commands, console, export
from parsgd.cluster import launch
from parsgd.config import choices
from parsgd.lab import command as lab

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"))
    if path.is_file()
]
COMMANDS = ("train", "traffic", "report", "list", "export", "evaluate")
STARTERS = ("launch", "lab")  # they start another command, in several processes
SHELL = ("", "sh", "bash", "shell", "console", "text")


class Block(NamedTuple):
    """A fenced code block: where it starts, its language and text.

    ``file`` is the file that it is, where the text before it ends in "`FILE`:".
    """

    line: int
    language: str
    text: str
    file: str | None


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(path: Path) -> list[Block]:
    text = read(path)
    found = []
    for fence in re.finditer(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.M | re.S):
        before = text[: fence.start()]
        name = re.search(r"`([\w/]+\.(?:py|yaml|md))`:\s*$", before)
        line = before.count("\n") + 2
        found.append(Block(line, fence[1], fence[2], name[1] if name else None))
    return found


def commands(path: Path) -> list[list[str]]:
    """Every ``parsgd`` command, from shell blocks and from inline code."""
    lines = [
        line
        for block in blocks(path)
        if block.language in SHELL
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    prose = re.sub(r"^```.*?^```", "", read(path), flags=re.M | re.S)
    lines += re.findall(r"`(parsgd [^`]+)`", prose)
    found = [_arguments(line) for line in lines]
    return [arguments for arguments in found if arguments]


def usages() -> str:
    """What ``--help`` says of each command, as a document with its examples."""
    hydra = yaml.safe_load(read(ROOT / "conf/config.yaml"))["hydra"]["help"]
    texts = [console.HELP, cli_commands.TRAFFIC, cli_commands.REPORT, export.EXPORT]
    texts += [export.EVALUATE, choices.USAGE, launch.USAGE, lab.USAGE]
    texts += [hydra["header"], hydra["footer"]]
    lines = "\n".join(texts).splitlines()
    # What an example does stands beside it.
    examples = [re.split(r" {2,}", x[2:])[0] for x in lines if x.startswith("  parsgd")]
    prose = [line for line in lines if not line.startswith("  parsgd")]
    return "\n".join(["```sh", *examples, "```", *prose, ""])


def _arguments(line: str) -> list[str] | None:
    """What follows ``parsgd`` in a line of shell; None if it is no such command."""
    started = r"(?:(?:mpirun|srun)(?: \S+)*? )?"
    path = r"\s*(?:\$ )?(?:\w+=\S+ )*" + started + r"(?:\S*/)?parsgd (.*)"
    command = re.match(path, line)
    if not command:
        return None
    words = shlex.split(re.split(r" [|>&;]", command[1])[0], comments=True)
    if words and words[0] in STARTERS:
        words = _started(words)
    if not words or words[0] not in COMMANDS:
        return None
    return [word for word in words if not _stands_for_others(word)]


def _started(words: list[str]) -> list[str]:
    """The command that these start, once their own options are known to exist."""
    inner = [i for i, word in enumerate(words) if word in COMMANDS]
    own = words[1 : inner[0]] if inner else words[1:]
    usage = _usage(words[0])
    for option in own:
        name = option.partition("=")[0]
        named = name in ("--", "--help") or re.search(rf"{name}\b", usage)
        known = not name.startswith("--") or named
        assert known, f"parsgd {words[0]} has no option {option}"
    return words[inner[0] :] if inner else []


@functools.cache
def _usage(starter: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "parsgd.cli", starter, "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def _stands_for_others(word: str) -> bool:
    """``...``, ``[GROUP]`` or ``KEY=VALUE``: the reader fills it in."""
    folder = r"resume=(?:DIR|outputs/[\d/-]+)"
    return bool(re.fullmatch(rf"\.\.\.|\[\w+\]|[A-Z]+=[A-Z]+|{folder}", word))


def can_be_built(words: list[str]) -> bool:
    """Whether the jobs of a ``train`` command, and their data and code, are there."""
    data = [word.partition("=")[2] for word in words if word.startswith("task.path=")]
    return (
        "--help" not in words
        and "hydra/sweeper=search" not in words
        and not any("._target_=" in word for word in words)
        and all(Path(file).exists() for file in data)
    )


def first_job(words: list[str]) -> list[str]:
    """Of a ``train`` command that may sweep: its first job as one configuration."""
    kept = [word for word in words if word not in ("-m", "--dry-run")]
    options = kept[:2] if kept[:1] == ["--config-dir"] else []
    overrides = OverridesParser.create().parse_overrides(kept[len(options) :])
    return [*options, *BasicSweeper.split_arguments(overrides, None)[0][0]]


def links(path: Path) -> list[str]:
    """Relative links, without those to other sites."""
    found = re.findall(r"\]\(([^)\s]+)\)", read(path))
    return [link for link in found if not re.match(r"\w+:", link)]


def anchors(path: Path) -> set[str]:
    """The anchors that headings make, as GitHub spells them."""
    titles = re.findall(r"^#+ (.+)$", read(path), re.M)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        for title in titles
    }


def sections(path: Path) -> list[tuple[str, str]]:
    """Every section's title and text, up to the next heading of any level."""
    text = re.sub(r"^```.*?^```", "", read(path), flags=re.M | re.S)
    parts = re.split(r"^#+ (.+)$", text, flags=re.M)
    return [(parts[i], parts[i + 1].strip("\n")) for i in range(1, len(parts), 2)]


def first_cells(path: Path) -> list[str]:
    """First column of all tables."""
    rows = re.findall(r"^\| ?(.+?) ?\|", read(path), re.M)
    return [row.strip() for row in rows]


def named(cells: list[str]) -> set[str]:
    """What stands in code marks in these cells."""
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
