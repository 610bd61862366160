"""The console command: ``parsgd train``, ``traffic``, ``report`` and others."""

import contextlib
import difflib
import errno
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from parsgd.signals import ENDING

HELP = """\
parsgd: research on parallel SGD.

  parsgd train ...        train one configuration, or with -m a sweep of many
  parsgd traffic ...      what a configuration sends, without training
  parsgd report DIR...    table, figures and page of what was run
  parsgd export DIR       the model of a run that saved checkpoints, as safetensors
  parsgd evaluate DIR     its scores on all examples, over all devices
  parsgd list [GROUP]     strategies, optimizers, tasks and other choices
  parsgd launch ...       several processes of one run, on this machine
  parsgd lab ...          the same over slow links, with the bytes that they carried

Examples:
  parsgd train strategy=block_momentum workers=4
  parsgd train -m strategy=sync_sgd,local_sgd workers=1,2,4 seed=0,1,2
  parsgd train -m +experiment=demo
  parsgd train resume=outputs/2026-01-31/12-00-00-000000
  parsgd traffic strategy=one_bit_sgd workers=8
  parsgd report multirun/2026-01-31/12-00-00-000000

`parsgd COMMAND --help` says more. Exit codes: 0 all went well, 1 a job failed or
diverged, 2 wrong use, 130 interrupted, 143 asked to end (SIGTERM).
"""

COMMANDS = ("train", "traffic", "report", "export", "evaluate", "list", "launch", "lab")
ALONE_SECONDS = 1.0
ASKED = [128 + number for number in ENDING]
_complaints: list[str] = []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code.

    Args:
        arguments: Without the program's name; by default those of the process.
    """
    logging.raiseExceptions = False  # a log that cannot be written is no traceback
    sys.unraisablehook = uncaught
    code: object = 1
    reason = ""
    try:
        code = _main(arguments)
        return code
    except SystemExit as end:
        code = 0 if end.code is None else end.code
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        if (cluster := _cluster()) and cluster.processes() > 1:
            traceback.print_exc()  # it ends below, before Python would show it
        raise
    finally:
        if cluster := _cluster():
            reason = reason or "".join(_complaints[-1:])
            cluster.leave(code if isinstance(code, int) else 1, reason)


def uncaught(unraisable: Any) -> None:
    """Show what nobody can catch, but for late answers of Orbax's writers.

    Python raises a Ctrl-C wherever it is, and in a callback, such as JAX's at a garbage
    collection, drops it: it is sent again.
    """
    if unraisable.exc_type is KeyboardInterrupt:
        main_thread = threading.main_thread().ident
        again = (main_thread, signal.SIGINT)
        threading.Timer(0.05, signal.pthread_kill, again).start()
    elif str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _cluster() -> Any:
    """The module, if the command has come to it."""
    return sys.modules.get("parsgd.cluster.group")


def _main(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if given else 2
    if given[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"parsgd {version('parsgd')}")
        return 0
    name, rest = given[0], given[1:]
    # A user's own modules, named by _target_, are found where the command is run.
    sys.path.append(os.getcwd())
    try:
        return _command(name, rest)
    except KeyboardInterrupt:
        return _interrupted(name, rest)
    except SystemExit as end:  # a job that was asked to end has said what it saved
        if end.code in ASKED and (rest_of_it := _missing()):
            with contextlib.suppress(OSError):  # a terminal that was closed
                _complain(rest_of_it)
        raise
    except Exception as error:
        if "debug=true" in rest:
            raise
        from parsgd.errors import by_interrupt

        if by_interrupt(error):
            return _interrupted(name, rest)
        return _explained(error, rest)


def _command(name: str, rest: list[str]) -> int:
    if name == "list":
        from parsgd.config.choices import show

        return show(rest)
    if name == "launch":
        from parsgd.cluster.launch import launch

        return launch(rest)
    if name == "lab":
        from parsgd.lab.command import lab

        return lab(rest)
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        more = f"; did you mean {near[0]}?" if near else ";"
        if name == "resume":
            more = "; `parsgd train resume=DIR` goes on with a run."
        _complain(f"{name}: there is no such command{more} `parsgd --help` lists them")
        return 2
    # Before JAX is imported: its runtime's errors are shown, its warnings are not.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if name in ("export", "evaluate"):
        from parsgd.cli import export

        return getattr(export, name)(rest)
    from parsgd.cli import commands

    return getattr(commands, name)(rest)


def _interrupted(name: str, arguments: Sequence[str]) -> int:
    """Say how to go on after Ctrl-C."""
    if how := _missing():
        how = f". {how}"
    elif {"-m", "--multirun"} & {*arguments}:
        how = ""
    elif name == "train":
        how = (
            ". A run that saves checkpoints (checkpoint.rounds or checkpoint.minutes) "
            "goes on with parsgd train resume=DIR, where DIR is its folder"
        )
    _complain(f"interrupted{how}")
    launchers = sys.modules.get("parsgd.cli.launchers")
    return 128 + (launchers.ended_by() if launchers else signal.SIGINT)


def _missing() -> str:
    """What does the rest of a sweep that has begun; nothing where there is none."""
    sweep = sys.modules.get("parsgd.cli.sweep")
    # Not by -m alone: a file may say that it is a sweep.
    folder = sweep.last_folder() if sweep else None
    if folder is None:
        return ""
    from parsgd.config.overrides import typed

    where = typed("hydra.sweep.dir", folder)
    return f"The same command with {where} does what is missing"


def _explained(error: Exception, arguments: Sequence[str]) -> int:
    """Print a user's mistake as one message; show any other error as it is."""
    from parsgd.config.messages import explain, is_mistake
    from parsgd.errors import raised_at, reason_of

    if is_mistake(error):
        _complain(explain(error, arguments))
    elif isinstance(error, BrokenPipeError):
        # As of `| head`: who reads has enough. Python would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    elif isinstance(error, OSError):
        where = error.filename or "a file could not be written"
        if error.errno == errno.ENOSPC and not error.filename:
            where = (
                "the disk of the output folder (hydra.run.dir, in a sweep "
                "hydra.sweep.dir) or of temporary files (TMPDIR) is full"
            )
        _complain(f"{where}: {error.strerror or error}")
    elif raised_at(error):  # in somebody's own code
        _complain(f"{reason_of(error)}; debug=true shows the traceback")
        return 1
    else:
        raise error
    return 2


def _complain(text: str) -> None:
    _complaints.append(text)
    cluster = _cluster()
    if cluster is not None and cluster.is_connected():
        if not cluster.is_first():  # all would say the same; else process 0 is told
            return
    elif os.environ.get("PARSGD_PROCESS", "0") != "0":
        # If process 0 has to say the same, it ends this one meanwhile.
        time.sleep(ALONE_SECONDS)
    print(f"parsgd: {text}", file=sys.stderr)
