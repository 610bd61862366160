"""The kernel's counters of an interface."""

from typing import NamedTuple

# Of each packet: 14 bytes of Ethernet, 20 of IP, 32 of TCP with its time stamps.
HEADER = 66
FILES = tuple(
    f"/sys/class/net/{{device}}/statistics/{name}"
    for name in ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")
)


class Counters(NamedTuple):
    """What an interface has carried."""

    sent: int
    received: int
    packets_sent: int
    packets_received: int

    @property
    def payload(self) -> int:
        """Bytes sent without headers, which is all that an acknowledgement is."""
        return self.sent - HEADER * self.packets_sent

    def since(self, earlier: "Counters") -> "Counters":
        """The difference."""
        return Counters(*(a - b for a, b in zip(self, earlier, strict=True)))


def read(device: str) -> Counters:
    """The counters of an interface that this process sees."""
    values = []
    for name in FILES:
        with open(name.format(device=device)) as file:
            values.append(int(file.read()))
    return Counters(*values)
