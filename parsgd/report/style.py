"""One colour per strategy, one dash and symbol per worker count, on every plot."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from parsgd.results import Group

# After Okabe and Ito (distinct for the common forms of colour blindness), with the
# shades chosen so that each reads on white and on near-black.
COLORS = (
    "#1F78C4",
    "#D55E00",
    "#009E73",
    "#CC6BA0",
    "#D99000",
    "#45A5DD",
    "#8A70D6",
    "#8A8A8A",
    "#A5772B",
    "#5FA832",
)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
FILLS = ("", "-open", "-dot")
MPL_DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 3, 1, 3)))
MPL_MARKERS = ("o", "s", "D", "^", "P", "*")
MPL_FILLS = ("full", "none", "left")


class Look(NamedTuple):
    """How one configuration is drawn: indices into the tables above."""

    color: str
    workers: int
    variant: int  # which of what varies besides strategy and workers

    @property
    def line(self) -> dict[str, Any]:
        """Plotly's line."""
        return {"color": self.color, "dash": DASHES[self.workers]}

    @property
    def symbol(self) -> str:
        """Plotly's marker symbol."""
        return SYMBOLS[self.workers] + FILLS[self.variant]


def looks(groups: Sequence[Group]) -> list[Look]:
    """The look of every configuration; more kinds than looks start over."""
    strategies = sorted({g.strategy for g in groups})
    counts = worker_counts(groups)
    variants = list(dict.fromkeys(_variant(g) for g in groups))
    return [
        Look(
            color=COLORS[strategies.index(g.strategy) % len(COLORS)],
            workers=counts.index(workers_of(g)) % len(DASHES),
            variant=variants.index(_variant(g)) % len(FILLS),
        )
        for g in groups
    ]


def workers_of(group: Group) -> int:
    """The worker count; 0 where a job failed before it had one."""
    workers = group.setting("workers")
    return workers if isinstance(workers, int) else 0


def worker_counts(groups: Sequence[Group]) -> list[int]:
    """The worker counts that occur, ascending."""
    return sorted({workers_of(g) for g in groups})


def _variant(group: Group) -> str:
    return str(sorted(group.varied.items(), key=lambda item: item[0]))
