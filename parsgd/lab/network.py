"""Links between machines: how fast, how far."""

import math
import re
from typing import NamedTuple

from parsgd.config.choices import choices, conf_dir
from parsgd.errors import UserError

_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
FORMS = "a preset (`parsgd list network`), or a rate such as 250mbit or 250mbit,20ms"
# What tc keeps to: beyond it limits queues wrongly, and delays are whole microseconds.
RATES = (8e3, 100e9)
LATENCIES = (1e-6, 60.0)


class Link(NamedTuple):
    """One machine's way to the others, equal in both directions.

    Attributes:
        rate: bit/s, of all that is on the wire, headers too; ``math.inf`` for no limit.
        latency: Seconds one way that are added to what the machines need anyhow.

    Example:
        >>> Link(1e9).seconds(125_000_000)
        1.0
    """

    rate: float
    latency: float = 0.0

    def seconds(self, size: float) -> float:
        """How long one message of ``size`` bytes takes at best."""
        return self.latency + 8 * size / self.rate

    def describe(self) -> str:
        """In words, such as ``1 Gbit/s, 20 ms``."""
        text = "unlimited"
        if math.isfinite(self.rate):
            unit = [u for u, bits in _UNITS.items() if bits <= self.rate][-1]
            text = f"{self.rate / _UNITS[unit]:.4g} {unit[:-3].capitalize()}bit/s"
        return f"{text}, {1e3 * self.latency:g} ms" if self.latency else text


def parse(text: str) -> Link:
    """The link that is meant by a preset's name, or by a rate and a latency.

    Args:
        text: A file of ``conf/network``, or a rate in bit, kbit, mbit or gbit (per
            second), which may be followed by a comma and a time in us, ms or s.

    Raises:
        UserError: ``text`` is neither a preset nor a rate with or without a latency, or
            one of both is too small or too large.

    Example:
        >>> parse("250mbit,20ms")
        Link(rate=250000000.0, latency=0.02)
    """
    presets = choices(conf_dir()).get("network", {})
    if text in presets:
        return _preset(text)
    rate, comma, latency = text.lower().partition(",")
    link = Link(_number(rate, _UNITS), _number(latency, _TIMES) if comma else 0.0)
    if not 0 < link.rate < math.inf or not 0 <= link.latency < math.inf:
        raise UserError(
            f"--link {text}: give {FORMS}. The presets are {', '.join(presets)}"
        )
    if not RATES[0] <= link.rate <= RATES[1]:
        raise UserError(
            f"--link {text}: tc can make links of 8kbit to 100gbit; give a rate "
            "between them, or unlimited"
        )
    if link.latency and not LATENCIES[0] <= link.latency <= LATENCIES[1]:
        raise UserError(
            f"--link {text}: tc can add latencies of 1us to 60s; give one between "
            "them, or leave it out"
        )
    return link


def _preset(name: str) -> Link:
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(
        OmegaConf.load(conf_dir() / "network" / f"{name}.yaml")
    )
    assert isinstance(values, dict)
    return Link(rate=float(values["rate"]), latency=float(values["latency"]))


def _number(text: str, units: dict[str, float]) -> float:
    """In the base unit; NaN where ``text`` is not a number with a known unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text)
    if match is None or match[2] not in units:
        return math.nan
    return float(match[1]) * units[match[2]]
