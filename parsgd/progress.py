"""What a run shows while it goes on: a progress bar, or lines where nobody watches."""

import logging
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from rich import progress as bars
from rich.console import Console
from rich.filesize import decimal

from parsgd import cluster
from parsgd.signals import terminal_may_close
from parsgd.training.meter import Record
from parsgd.training.observer import Observer
from parsgd.training.run import Run
from parsgd.words import decimals, number

log = logging.getLogger(__name__)

MORE = (
    "; more than without compression: a code that is gathered sends W - 1 payloads, so "
    "use fewer workers, a code of fewer bits, one that is summed (compressor=fp16, but "
    "not under feedback=ef21), or two_sided=true where strategy or feedback has it"
)


class Progress(Observer):
    """Shows a run on a console, and tells the same to Python's log.

    Args:
        console: Where to, of rich; None for standard output, in several processes that
            of the first. A terminal gets a bar, anything else a line per evaluation.
        lines: To print at the start, besides what `parsgd.fit` tells.
        brief: Whether it is one of many jobs: at its start what none before it has
            said, and of its evaluations the last. The log has all.

    Example:
        >>> import optax, parsgd
        >>> run = parsgd.fit(  # doctest: +ELLIPSIS
        ...     parsgd.digits(), parsgd.single(optax.sgd(0.1)),
        ...     worker_batch=32, epochs=1, evaluations=1, observer=parsgd.Progress())
        1 worker x worker_batch 32 = global_batch 32; 44 steps and 1408 samples ...
    """

    said: ClassVar[set[str]] = set()  # by jobs of this process

    def __init__(
        self,
        console: Console | None = None,
        lines: Sequence[str] = (),
        *,
        brief: bool = False,
    ):
        self._console = console or Console()
        self._given = console is not None
        self._lines, self._brief = lines, brief
        self._bar: bars.Progress | None = None
        self._row = bars.TaskID(0)
        self._accuracy: float | None = None
        self._last = ""

    def end(self, run: Run | None) -> None:
        """The bar ends, and the last line stays."""
        del run
        if self._bar is not None:
            with terminal_may_close():
                self._bar.stop()
        if self._bar is not None or self._brief:
            # The bar leaves nothing behind: what the run came to stays.
            self._print(self._last)
        self._bar, self._last = None, ""

    def say(self, text: str) -> None:
        """Print a line, and log it."""
        log.info(text)
        self._print(text)

    def _print(self, text: str) -> None:
        # No wrapping: lines are read by programs too, where there is no terminal.
        if text:
            with terminal_may_close():
                self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def start(self, summary: dict[str, Any], lines: Sequence[str]) -> None:
        """Sizes, learning rate, placement and traffic; then the bar."""
        self._accuracy, self._last = None, ""
        if not self._given:  # only now all processes have joined
            self._console.quiet = not cluster.is_first()
        # Where phases differ, the bytes are those of one of them.
        steps = summary.get("bytes_from_step", 0), summary.get("bytes_until_step")
        sent, dense = summary["bytes_per_round"], summary["bytes_dense_per_round"]
        calls = summary["calls_per_round"]
        said = [compare(sent, dense, per_round(*steps), calls=calls)]
        if any(steps):
            whole = summary["bytes_planned"], summary["bytes_dense_planned"]
            said.append(compare(*whole, "in the whole run"))
        for line in (*lines, *self._lines, *said):
            if self._brief and line in self.said:
                log.info(line)
            else:
                self.say(line)
            self.said.add(line)
        if self._console.is_terminal:
            text = bars.TextColumn("{task.fields[text]}", markup=False)
            self._bar = bars.Progress(
                bars.BarColumn(bar_width=self._console.width // 6),
                bars.TextColumn("{task.percentage:>3.0f}%"),
                text,
                bars.TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
            self._row = self._bar.add_task("train", total=1, text="compiling")

    def progress(self, step: int, steps: int, record: Record) -> None:
        """Move the bar."""
        if self._bar is not None:
            text = _text(record, self._accuracy, self._room())
            self._bar.update(self._row, completed=step, total=steps, text=text)

    def _room(self) -> int:
        """What is left of a line beside the bar, its share and the time to go."""
        return self._console.width * 5 // 6 - len(" 100%  0:00:00 ")

    def record(self, record: Record) -> None:
        """One line per evaluation, where there is no bar and the job is not brief."""
        self._accuracy = record.get("test_accuracy")
        if self._bar is not None:
            self._bar.update(
                self._row, text=_text(record, self._accuracy, self._room())
            )
        line = f"step {record['step']}, epoch {record['epoch']:.2f}: "
        line += _text(record, self._accuracy)
        log.info(line)
        if self._bar is None and not self._brief:
            self._print(line)
        self._last = line


def compare(
    sent: float,
    dense: float,
    when: str = "per round",
    *,
    calls: Collection[str] = (),
) -> str:
    """What a worker sends, beside an all-reduce of the gradients in every step.

    Args:
        sent: Bytes sent in some steps.
        dense: Bytes of an all-reduce of the gradients in each of them.
        when: Which steps; see also `per_round`.
        calls: The kinds of collectives. Where gathering sends more than an all-reduce
            of the gradients would, that is said, with what to do.

    Example:
        >>> compare(1000, 16000)
        'per round a worker sends 1.0 kB; all-reduced gradients: 16.0 kB, ratio 16'
    """
    if when != "per round":
        when += ","  # "on a worker" would read as one thing
    if not sent:
        return f"{when} a worker sends nothing"
    # Not by rounding alone.
    more = MORE if "all-gather" in calls and sent > 1.001 * dense else ""
    return (
        f"{when} a worker sends {decimal(round(sent))}; all-reduced gradients: "
        f"{decimal(round(dense))}, ratio {number(dense / sent)}{more}"
    )


def per_round(first: int = 0, last: int | None = None) -> str:
    """In which rounds, for an algorithm whose phases send different amounts.

    Args:
        first: Step at which the phase begins.
        last: Step at which another takes over, or None.

    Example:
        >>> per_round(), per_round(40), per_round(0, 40)
        ('per round', 'per round from step 40 on', 'per round until step 40')
        >>> per_round(40, 80)
        'per round from step 40 until step 80'
    """
    since = f" from step {first}" if first else ""
    if last is None:
        return f"per round{since}{' on' if since else ''}"
    return f"per round{since} until step {last}"


def _text(record: Record, accuracy: float | None, room: int | None = None) -> str:
    """What is known so far, as much of it as there is room for."""
    parts = _parts(record, accuracy, " samples/s on average", " sent")
    if room is None or len(", ".join(parts)) <= room:
        return ", ".join(parts)
    parts = _parts(record, accuracy, "/s", "")
    while len(", ".join(parts)) > room and len(parts) > 1:
        parts.pop()
    return ", ".join(parts)


def _parts(
    record: Record, accuracy: float | None, per_second: str, sent: str
) -> list[str]:
    loss = record.get("batch_loss")
    parts = [f"loss {decimals(loss)}"] if loss is not None else []
    if accuracy is not None:
        parts.append(f"accuracy {accuracy:.4f}")
    if record["seconds"]:
        rate = record["samples"] / record["seconds"]
        parts.append(f"{rate:,.0f}{per_second}")
    return [*parts, f"{decimal(round(record['bytes']))}{sent}"]
