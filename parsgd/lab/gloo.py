"""What gloo sends for a collective besides the array.

Measured with JAX 0.10.2 on CPU over two, three and four namespaces; docs/lab.md has the
table. Each part of a message that one process sends to another costs 144 bytes: its
header, and a note from either side that it is ready. An all-reduce is a ring of 4 (W-1)
parts, an all-gather one of 2 (W-1). Arrays of many megabytes are sent in more parts,
which is too little to matter there.
"""

from collections.abc import Mapping

PART = 144


def fixed_bytes(calls: Mapping[str, int], workers: int) -> float:
    """Bytes that a process sends for the calls themselves, whatever their size.

    Args:
        calls: How often each collective is called, by its name in `parsgd.traffic`.
        workers: W, one in each process.

    Example:
        >>> fixed_bytes({"all-reduce": 2, "all-gather": 1}, 3)
        2880.0
    """
    parts = {
        "all-reduce": 4.0 * (workers - 1),
        "all-gather": 2.0 * (workers - 1),
        "all-to-all": 1.0 * (workers - 1),
        "reduce-scatter": workers / 3,  # not a whole number: some parts have no note
        "permute": 1.0,
    }
    return PART * sum(count * parts[name] for name, count in calls.items())
