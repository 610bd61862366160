"""How a configuration is drawn, the same on every plot.

One dash and symbol per worker count, one colour per strategy (the best-known ones have
theirs in every report), and a fill of the symbol for what else varies. Where that has
more values than there are fills, the colour stands for strategy and values together.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
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
# The number of a strategy's own colour, as far as there are enough.
HOMES = {
    name: number
    for number, name in enumerate(
        (
            "sync_sgd",
            "local_sgd",
            "one_bit_sgd",
            "block_momentum",
            "power_sgd",
            "top_k_sgd",
            "diloco",
            "single",
            "qsgd",
            "ef_sign_sgd",
        )
    )
}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
GLYPHS = "●■◆▲✚★"  # the symbols, as letters
FILLS = ("", "-open", "-dot")
FILLED = ("filled", "open", "with a dot")
MPL_DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 3, 1, 3)))
MPL_MARKERS = ("o", "s", "D", "^", "P", "*")
MPL_FILLS = ("full", "none", "left")


class Look(NamedTuple):
    """How one configuration is drawn.

    Attributes:
        color: Of the strategy, or of ``name`` where that is more.
        workers: Index of dash and symbol in the tables above.
        variant: Index of the fill.
        name: What the colour stands for.
        detail: What the fill stands for; nothing where it is in the name.
    """

    color: str
    workers: int
    variant: int
    name: str
    detail: str = ""

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
    counts = worker_counts(groups)
    details = short([g.traits for g in groups])
    variants = list(dict.fromkeys(details))
    whole = len(variants) > len(FILLS)
    named = [
        ", ".join(filter(None, [g.strategy, detail if whole else ""]))
        for g, detail in zip(groups, details, strict=True)
    ]
    kinds = {name: g.strategy for g, name in zip(groups, named, strict=True)}
    colors = colors_of({name: kinds[name] for name in sorted(kinds, key=_naturally)})
    looks = []
    for g, name, detail in zip(groups, named, details, strict=True):
        again, color = divmod(colors[name], len(COLORS))
        look = Look(
            color=COLORS[color],
            workers=counts.index(workers_of(g)) % len(DASHES),
            variant=(again if whole else variants.index(detail)) % len(FILLS),
            name=name,
            detail="" if whole else detail,
        )
        looks.append(look)
    return looks


def colors_of(strategies: Mapping[str, str]) -> dict[str, int]:
    """A number for each name: of its colour, plus a number of all colours if used up.

    Args:
        strategies: The strategy of each name.

    Example:
        >>> colors_of({"local_sgd, H=2": "local_sgd", "mine": "mine"})
        {'local_sgd, H=2': 1, 'mine': 0}
    """
    found: dict[str, int] = {}
    for name, strategy in strategies.items():
        home = HOMES.get(strategy)
        if home is not None and home not in found.values():
            found[name] = home
    free = (number for number in count() if number not in {*found.values()})
    return {
        name: found[name] if name in found else found.setdefault(name, next(free))
        for name in strategies
    }


def symbols(groups: Sequence[Group], looks: Sequence[Look]) -> str:
    """What symbols and fills stand for, in one sentence; empty where for nothing.

    Example:
        ``Workers: ● 1, ■ 4. Filled: scaling=none; open: scaling=linear.``
    """
    pairs = zip(groups, looks, strict=True)
    counts = dict(sorted((workers_of(group), look) for group, look in pairs))
    said = []
    if len(counts) > 1:
        shown = (f"{GLYPHS[look.workers]} {count}" for count, look in counts.items())
        said.append(f"Workers: {', '.join(shown)}.")
    fills = {look.variant: look.detail or "all else" for look in looks}
    if len(fills) > 1 and any(look.detail for look in looks):
        first, *others = (f"{FILLED[i]}: {fills[i]}" for i in sorted(fills))
        said.append("; ".join([first[0].upper() + first[1:], *others]) + ".")
    return " ".join(said)


def short(traits: Sequence[Iterable[str]]) -> list[str]:
    """What tells configurations apart, without the first parts of keys if they can go.

    Example:
        >>> short([["strategy.eta=0.5"], ["strategy.eta=0.9", "H=4"], []])
        ['eta=0.5', 'eta=0.9, H=4', '']
    """

    def tail(key: str) -> str:
        return key.removesuffix("._target_").rpartition(".")[2]

    keys = {text.partition("=")[0] for one in traits for text in one}
    times = Counter(map(tail, keys))

    def shortened(text: str) -> str:
        key, _, value = text.partition("=")
        return f"{tail(key) if times[tail(key)] == 1 else key}={value}"

    return [", ".join(map(shortened, one)) for one in traits]


def workers_of(group: Group) -> int:
    """The worker count; 0 where a job failed before it had one."""
    return group.setting("workers") or 0


def worker_counts(groups: Sequence[Group]) -> list[int]:
    """The worker counts that occur, ascending."""
    return sorted({workers_of(g) for g in groups})


def _naturally(text: str) -> list[tuple[float, str]]:
    """Sort key by which H=16 comes after H=4."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(p), "") if i % 2 else (-1.0, p) for i, p in enumerate(parts)]
