"""The tables of ``parsgd traffic``."""

from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from parsgd.config.objects import Built, plan_of
from parsgd.core import phases
from parsgd.progress import compare, per_round
from parsgd.reducers.paths import Leaf, noted
from parsgd.traffic import BRANCHES, Traffic, all_reduce_bytes
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
    parts = segments(plan, schedule)
    said = plan.describe(sum(part.rounds for part in parts))
    for line in (*said, f"{engine.parameters:,} parameters, {size}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    # What a round of a phase usually is: its last one may be shorter.
    usual: dict[int, Segment] = {}
    sent = 0.0
    told: dict[str, Leaf] = {}
    for part in parts:
        sent += part.rounds * engine.worker.traffic(part.phase, part.local_steps).bytes
        if part.phase not in usual or part.steps > usual[part.phase].steps:
            usual[part.phase] = part
    dense = all_reduce_bytes(engine.parameter_bytes, engine.placement.workers)
    ends = [*(schedule[phase].start for phase in usual), None][1:]
    for (phase, part), end in zip(usual.items(), ends, strict=True):
        with noted() as leaves:
            found = engine.worker.traffic(phase, part.local_steps)
        when = per_round(schedule[phase].start, end)
        steps = counted(part.local_steps, "local step")
        # No title of the table's own, which would be broken to its width.
        title = f"one worker, {when}, {steps} each"
        console.print(title, style="italic", highlight=False, soft_wrap=True)
        console.print(_table(found))
        text = compare(found.bytes, dense * part.local_steps, when, calls=found.calls)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        if found.at_most:
            console.print(BRANCHES, markup=False, highlight=False, soft_wrap=True)
        if leaves and leaves != told:
            console.print(_arrays(leaves))
            told = leaves
    if len(usual) > 1:
        text = compare(sent, dense * plan.steps, "in the whole run")
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(found: Traffic) -> Table:
    table = Table(show_footer=True)
    table.add_column("collective", footer="all")
    table.add_column("dtype")
    table.add_column("shape")
    table.add_column("count", justify="right")
    table.add_column("bytes", justify="right", footer=f"{round(found.bytes):,}")
    for message, times in Counter(found.messages).items():
        table.add_row(
            message.collective,
            message.dtype,
            str([*message.shape]),
            str(message.count * times),
            f"{round(message.bytes * times):,}",
        )
    if len(found.calls) > 1:
        table.add_section()
        sums = found.by_collective()
        for collective, calls in found.calls.items():
            size = f"{round(sums[collective]):,}"
            table.add_row(collective, "all", "", str(calls), size)
    return table


def _arrays(leaves: Mapping[str, Leaf]) -> Table:
    """Which of the model's arrays are compressed, and why the others are not."""
    table = Table(title="the model's arrays", title_justify="left")
    for column in ("array", "dtype", "shape", "sent"):
        table.add_column(column)
    for path, leaf in leaves.items():
        table.add_row(escape(path), leaf.dtype, str([*leaf.shape]), leaf.how)
    return table
