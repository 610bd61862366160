"""Links by name and by rate."""

import math

import pytest

from parsgd.errors import UserError
from parsgd.lab import network
from parsgd.lab.network import Link


@pytest.mark.parametrize(
    "text, link",
    [
        ("1gbit", Link(1e9)),
        ("unlimited", Link(math.inf)),
        ("250mbit", Link(250e6)),
        ("1.5GBit", Link(1.5e9)),
        ("64kbit,20ms", Link(64e3, 0.02)),
        ("9600bit,1s", Link(9600, 1.0)),
        ("1gbit,50us", Link(1e9, 50e-6)),
        ("8kbit,0us", Link(8e3)),
        ("100gbit,1us", Link(100e9, 1e-6)),
        ("1gbit,60s", Link(1e9, 60.0)),
    ],
)
def test_links_are_presets_or_rates(text, link):
    got = network.parse(text)
    assert got.rate == link.rate
    assert got.latency == pytest.approx(link.latency)


@pytest.mark.parametrize(
    "text",
    ["", "fast", "1", "gbit", "-1gbit", "0mbit", "1gbit,", "1gbit,5", "1gb", "1e9bit"],
)
def test_J4_what_is_no_link_is_refused_with_the_presets(text):
    with pytest.raises(UserError, match=f"--link {text}: .* 250mbit.* 100mbit, 10gbit"):
        network.parse(text)


@pytest.mark.parametrize(
    "text, said",
    [
        ("1bit", "links of 8kbit to 100gbit; give a rate between them, or unlimited"),
        ("7999bit", "links of 8kbit to 100gbit"),
        ("800gbit", "links of 8kbit to 100gbit"),
        ("250mbit,0.4us", "latencies of 1us to 60s; give one between them, or leave"),
        ("250mbit,61s", "latencies of 1us to 60s"),
    ],
)
def test_links_that_tc_would_make_wrongly_are_refused(text, said):
    with pytest.raises(UserError, match=f"^--link {text}: tc can .*{said}"):
        network.parse(text)


def test_links_in_words():
    assert Link(1e9).describe() == "1 Gbit/s"
    assert Link(2.5e8, 0.02).describe() == "250 Mbit/s, 20 ms"
    assert Link(500).describe() == "500 bit/s"
    assert Link(math.inf).describe() == "unlimited"
    assert Link(1e6, 0.5).seconds(1000) == 0.508
