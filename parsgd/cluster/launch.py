"""``parsgd launch``: several processes of one run on this machine.

For tests and debugging on CPU; on a cluster its own launcher (``srun``, ``mpirun``)
starts the processes. Each one gets where the first is, how many there are and which it
is, as `parsgd.cluster.rendezvous` reads them. They live and die together: what fails
first ends the others, and nothing is left behind, however this process ends.
"""

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from parsgd import cores
from parsgd.cluster import gpus
from parsgd.errors import UserError

USAGE = """\
usage: parsgd launch [--processes N] [--pin] [--grace SECONDS] COMMAND ...

Starts N processes of a run on this machine: for tests and debugging. COMMAND is that
of parsgd, such as train, or a Python file of your own that calls parsgd.cluster.start.

  --processes N     how many, 2 if left out
  --pin             each process on one core, in turn over those that may be used
  --grace SECONDS   how long the others may take to end after one failed, before they
                    are killed: 5. After Ctrl-C all may save; a second one kills them

Lines of process 0 are shown as they are, those of others after their number. The first
failure ends all, and its exit code (128 + n for signal n) is that of the command.
Each has its part of the GPUs, where there are N or more.

  parsgd launch --processes 2 train strategy=local_sgd workers=4
  parsgd launch --processes 2 --pin train task=fashion_mnist workers=2
"""
# What one process of a run can do; others look at files, or start processes themselves.
COMMANDS = ("train", "evaluate", "export")


def launch(arguments: list[str]) -> int:
    """Start the processes and wait for them; returns the first failure's exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    parser = Parser("launch")
    parser.add_argument("--processes", type=whole, default=2)
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--grace", type=seconds, default=5.0)
    options = parser.parse(arguments)
    from parsgd.cluster.supervise import supervise

    command = command_line("launch", options.command)
    with reserve() as port:
        host, number = port.getsockname()
        places = environments(f"{host}:{number}", options.processes)
        shares = gpus.dealt(os.environ, options.processes)
        return supervise(
            [command] * options.processes,
            [place | share for place, share in zip(places, shares, strict=True)],
            cores=turns(options.processes) if options.pin else None,
            grace=options.grace,
        )


class Parser(argparse.ArgumentParser):
    """Options, then the command to start; mistakes become a `UserError`."""

    def __init__(self, name: str):
        super().__init__(prog=f"parsgd {name}", add_help=False, allow_abbrev=False)
        self._name = name

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options, and as ``command`` what follows them, or follows ``--``."""
        self.add_argument("command", nargs=argparse.REMAINDER)
        # All that follows the command is its own, even where it looks like an option.
        options = self.parse_args(list(arguments))
        if options.command[:1] == ["--"]:
            options.command = options.command[1:]
        if options.command and options.command[0] in COMMANDS:
            for word in options.command:
                if word.partition("=")[0] in self._option_string_actions:
                    raise UserError(
                        f"{word} is an option of parsgd {self._name}, which stands "
                        f"before the command: parsgd {self._name} {word} ... "
                        f"{options.command[0]} ..."
                    )
        return options

    def error(self, message: str) -> NoReturn:
        """Refuse as all commands do."""
        raise UserError(f"{message}: see `parsgd {self._name} --help`")


def whole(text: str) -> int:
    """A number of processes."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is no whole number, 1 or more")
    return int(text)


def seconds(text: str) -> float:
    """A time that is not negative and ends."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return value


def command_line(name: str, words: Sequence[str]) -> list[str]:
    """What a process runs, so that it needs no program on the search path.

    Args:
        name: Of the command that starts it, for the messages.
        words: A command of parsgd with its arguments, or a Python file with its own.

    Raises:
        UserError: ``words`` is empty, or starts with neither a command of parsgd nor a
            Python file that exists.
    """
    if not words:
        raise UserError(
            f"parsgd {name}: which command? As in parsgd {name} --processes 2 train "
            "workers=2"
        )
    first = words[0]
    if first in COMMANDS:
        return [sys.executable, "-m", "parsgd.cli", *words]
    if first.endswith(".py"):
        if not os.path.isfile(first):
            raise UserError(f"{first}: there is no such file")
        return [sys.executable, *words]
    hint = " Options stand before the command" if first.startswith("-") else ""
    raise UserError(
        f"parsgd {name} cannot start {first}: it starts {', '.join(COMMANDS)} or a "
        f"Python file.{hint}"
    )


def environments(coordinator: str, processes: int) -> list[dict[str, str]]:
    """What tells each process its place; `parsgd.cluster.rendezvous` reads it.

    Args:
        coordinator: ``host:port`` where process 0 will listen.
        processes: How many there are.

    Example:
        >>> environments("127.0.0.1:1234", 2)[1]["PARSGD_PROCESS"]
        '1'
    """
    return [
        {
            "PARSGD_COORDINATOR": coordinator,
            "PARSGD_PROCESSES": str(processes),
            "PARSGD_PROCESS": str(i),
            "PYTHONUNBUFFERED": "1",  # so that lines are shown when they are written
        }
        for i in range(processes)
    ]


def reserve() -> socket.socket:
    """A free port of this machine, kept from other launches while it is open.

    It never listens, so that process 0 may listen there at the same time.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


def turns(processes: int) -> list[int]:
    """A core for each process: those that may be used, in turn.

    Raises:
        UserError: This system cannot pin processes.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise UserError(
            "--pin: only Linux lets a process choose its core; leave it out"
        )
    usable = cores.usable()
    return [usable[i % len(usable)] for i in range(processes)]
