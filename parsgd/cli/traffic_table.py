"""The tables of ``parsgd traffic``."""

from collections import Counter

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from parsgd.config.objects import Built, plan_of
from parsgd.core import phases
from parsgd.progress import compare, per_round
from parsgd.traffic import Traffic
from parsgd.training.checks import check_local_steps
from parsgd.training.engine import Engine
from parsgd.training.segments import Segment, segments
from parsgd.words import counted


def show(built: Built, console: Console | None = None) -> None:
    """Print what one worker sends per round, in each phase of the algorithm."""
    console = console or Console()
    plan = plan_of(built.task, built.arguments)
    schedule = phases(built.strategy)
    check_local_steps(plan, schedule)
    engine = Engine(
        built.task,
        schedule,
        order=plan.order,
        kind=built.arguments["placement"],
        devices=built.arguments["devices"],
        micro_batches=built.arguments["micro_batches"],
    )
    size = decimal(engine.parameter_bytes)
    for line in (*plan.describe(), f"{engine.parameters:,} parameters, {size}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    # What a round of a phase usually is: its last one may be shorter.
    usual: dict[int, Segment] = {}
    sent = 0.0
    for part in segments(plan, schedule):
        sent += part.rounds * engine.traffic(part.phase, part.local_steps).bytes
        if part.phase not in usual or part.steps > usual[part.phase].steps:
            usual[part.phase] = part
    share = 2 * (engine.placement.workers - 1) / engine.placement.workers
    dense = share * engine.parameter_bytes
    ends = [*(schedule[phase].start for phase in usual), None][1:]
    for (phase, part), end in zip(usual.items(), ends, strict=True):
        found = engine.traffic(phase, part.local_steps)
        when = per_round(schedule[phase].start, end)
        steps = counted(part.local_steps, "local step")
        console.print(_table(found, f"one worker, {when}, {steps} each"))
        text = compare(found.bytes, dense * part.local_steps, when, calls=found.calls)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if len(usual) > 1:
        text = compare(sent, dense * plan.steps, "in the whole run")
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(found: Traffic, title: str) -> Table:
    table = Table(title=title, title_justify="left", show_footer=True)
    table.add_column("collective", footer="all")
    table.add_column("dtype")
    table.add_column("shape")
    table.add_column("count", justify="right")
    table.add_column("sent", justify="right", footer=decimal(round(found.bytes)))
    for message, times in Counter(found.messages).items():
        table.add_row(
            message.collective,
            message.dtype,
            str([*message.shape]),
            str(message.count * times),
            decimal(round(message.bytes * times)),
        )
    return table
