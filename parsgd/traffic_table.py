"""The table of ``parsgd traffic``."""

from collections import Counter

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from parsgd.config import SIZES, Built
from parsgd.core import phases
from parsgd.engine import Engine
from parsgd.plan import make_plan, segments
from parsgd.traffic import Message


def show(built: Built, console: Console | None = None) -> None:
    """Print what one worker sends per round, in each phase of the algorithm."""
    console = console or Console()
    sizes = {name: built.arguments[name] for name in SIZES}
    plan = make_plan(len(built.task.data.train.x), **sizes)
    schedule = phases(built.strategy)
    engine = Engine(
        built.task,
        schedule,
        order=plan.order,
        kind=built.arguments["placement"],
        devices=built.arguments["devices"],
        micro_batches=sizes["micro_batches"],
    )
    for line in plan.describe():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{engine.parameters:,} parameters, {decimal(engine.parameter_bytes)}",
        highlight=False,
    )
    seen = set()
    for part in segments(plan, schedule):
        kind = part.phase, part.local_steps
        last_round = part.rounds == 1 and part.local_steps < plan.local_steps
        if kind in seen or (last_round and len(seen) > 0):
            continue
        seen.add(kind)
        console.print(_table(engine, *kind, start=schedule[part.phase].start))


def _table(engine: Engine, phase: int, local_steps: int, *, start: int) -> Table:
    found = engine.traffic(phase, local_steps)
    steps = f"{local_steps} local step{'' if local_steps == 1 else 's'}"
    title = f"Per worker and round of {steps}, {engine.workers} workers"
    if len(engine.phases) > 1:
        title += f", from step {start}"
    table = Table(title=title, title_justify="left", show_footer=True)
    dense = 2 * (engine.workers - 1) / engine.workers
    dense *= engine.parameter_bytes * local_steps
    ratio = f"{dense / found.bytes:.3g} x less" if found.bytes else "nothing is sent"
    table.add_column("collective", footer="all")
    table.add_column("dtype")
    table.add_column("shape")
    table.add_column("count", justify="right")
    table.add_column("sent", justify="right", footer=decimal(round(found.bytes)))
    for message, times in _merged(found.messages).items():
        table.add_row(
            message.collective,
            message.dtype,
            str(list(message.shape)),
            str(message.count * times),
            decimal(round(message.bytes * times)),
        )
    table.caption = (
        f"{ratio} than all-reduced gradients in every step ({decimal(round(dense))})"
    )
    table.caption_justify = "left"
    return table


def _merged(messages: tuple[Message, ...]) -> Counter[Message]:
    """Equal messages, and how often each occurs."""
    return Counter(messages)
