"""The command ``parsgd lab``."""

import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parsgd.cluster.launch import (
    COMMANDS,
    Parser,
    command_line,
    environments,
    seconds,
    turns,
    whole,
)
from parsgd.cluster.supervise import supervise
from parsgd.environment import LINK
from parsgd.errors import UserError
from parsgd.lab import links, network
from parsgd.signals import handled, unwind

USAGE = """\
usage: parsgd lab [--processes N] [--link LINK] [--pin] [--grace SECONDS]
                  [--output FILE] [--] COMMAND ...

Starts N processes of a run on this machine, each behind a network link of its own that
is as slow as LINK says, and shows what the links carried beside what the program
counts. Needs Linux, root, ip and tc. COMMAND is as for `parsgd launch`.

  --processes N     how many, 2 if left out
  --link LINK       a preset (`parsgd list network`), or a rate such as 250mbit, or with
                    a latency 250mbit,20ms; unlimited if left out
  --pin             each process on one core, in turn over those that may be used
  --grace SECONDS   as for `parsgd launch`
  --output FILE     write what is shown to a JSON file as well

  parsgd lab --processes 2 --link 1gbit -- train task=fashion_mnist workers=2
  parsgd lab --processes 4 --link 100mbit --pin -- train strategy=power_sgd workers=4

The processes see only each other: a data set must lie on this machine already.
"""
PORT = 7070  # each namespace has all ports to itself


def lab(arguments: list[str]) -> int:
    """Build the links, run, show what they carried, remove them."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    parser = Parser("lab")
    parser.add_argument("--processes", type=whole, default=2)
    parser.add_argument("--link", default="unlimited")
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--grace", type=seconds, default=5.0)
    parser.add_argument("--output", type=Path)
    options = parser.parse(arguments)
    link, count = network.parse(options.link), options.processes
    command = command_line("lab", options.command)
    if options.output is not None:
        if not options.output.absolute().parent.is_dir():
            raise UserError(f"--output {options.output}: there is no such folder")
        if options.output.is_dir():
            raise UserError(f"--output {options.output}: a folder; name a file")
    cores = turns(count) if options.pin else None
    with (
        handled((signal.SIGTERM, signal.SIGHUP), unwind),
        links.network(count, link) as made,
        tempfile.TemporaryDirectory(prefix="parsgd-lab-") as scratch,
    ):
        files = [Path(scratch) / f"{i}.jsonl" for i in range(count)]
        commands = [
            links.inside(space, _counting(command, options.command, file))
            for space, file in zip(made.spaces, files, strict=True)
        ]
        where = environments(f"{made.addresses[0]}:{PORT}", count)
        where = [one | {LINK: link.describe()} for one in where]
        code = supervise(commands, where, cores=cores, grace=options.grace)
        whole_run = [links.counters(space)._asdict() for space in made.spaces]
        jobs = [_lines(file) for file in files]
    training = together(jobs)
    if code and not training:
        return code
    result = {
        "link": options.link,
        "rate": link.rate if link.rate < float("inf") else None,
        "latency": link.latency,
        "processes": count,
        "cores": cores,
        "command": options.command,
        "code": code,
        # One list per job of the command, with an entry per process. Those of a sweep
        # that were measured are shown also if another failed.
        "training": training,
        "whole_run": whole_run,
    }
    print(f"{count} links of {link.describe()} each way\n{table(result)}", flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return code


def _counting(command: list[str], words: Sequence[str], file: Path) -> list[str]:
    if words[0] not in COMMANDS:
        return command
    return [sys.executable, "-m", "parsgd.lab.inside", str(file), *words]


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


def together(lines: Sequence[Sequence[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """For each job that all processes have measured, their lines.

    Args:
        lines: What each process wrote, a line per job, with its number; where a job
            failed some have no line of it.
    """
    numbered = [{line["job"]: line for line in own} for own in lines]
    complete = set.intersection(*map(set, numbered))
    return [[own[number] for own in numbered] for number in sorted(complete)]


def table(result: dict[str, Any]) -> str:
    """What the links carried, as text.

    Args:
        result: As it is written to a file.
    """
    lines = []
    for job in result["training"]:
        of_job = f" of job {job[0]['job']}" if len(result["training"]) > 1 else ""
        lines += _training(job, result["processes"], of_job)
    lines.append("whole run, by the kernel's counters")
    lines.append(f"{'process':>9}{'sent':>14}{'received':>14}")
    for number, carried in enumerate(result["whole_run"]):
        sizes = f"{carried['sent']:>14,}{carried['received']:>14,}"
        lines.append(f"{number:>9}{sizes}")
    return "\n".join(lines)


def _training(job: list[dict[str, Any]], processes: int, of_job: str) -> list[str]:
    if not job[0]["rounds"]:
        return [f"training{of_job}: one dispatch, too short to be compared"]
    calls = job[0]["calls_per_round"]
    lines = [
        f"training{of_job}, {job[0]['rounds']} rounds in {job[0]['dispatches']} "
        "dispatches after the first: bytes that an",
        "interface sent, in all and without headers, beside what the program counts,",
        "and that with what gloo adds to each of a round's calls: "
        + (", ".join(f"{n} {name}" for name, n in calls.items()) or "none"),
        f"{'process':>9}{'sent':>14}{'payload':>14}{'counted':>14}{'expected':>14}"
        f"{'sent/counted':>14}{'payload/expected':>18}",
    ]
    for number, one in enumerate(job):
        shares = f"{'-':>14}{'-':>18}"
        if one["counted"] and one["workers"] == processes:
            shares = f"{one['sent'] / one['counted']:>14.3f}"
            shares += f"{one['payload'] / one['expected']:>18.3f}"
        sizes = f"{one['sent']:>14,}{one['payload']:>14,}{one['counted']:>14,.0f}"
        lines.append(f"{number:>9}{sizes}{one['expected']:>14,.0f}{shares}")
    if job[0]["workers"] != processes:
        lines.append(
            f"{job[0]['workers']} workers share {processes} processes: what they "
            "exchange within a process is on no link, so the two are not comparable"
        )
    return lines
