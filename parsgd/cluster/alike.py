"""Whether the processes of a run were started with the same options.

Different batches or rates would train something, and nothing would tell.
"""

import json
import weakref
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parsgd import cluster
from parsgd.data.dataset import Dataset
from parsgd.errors import UserError
from parsgd.flat import ABSENT, leaves, under

_KNOWN: dict[int, tuple[weakref.ref, int]] = {}


def data_checksum(data: Dataset) -> str:
    """Of both splits' arrays; one that nobody can write is read once."""
    sums = [_checksum(x) for x in (*data.train, *data.test)]
    return f"{zlib.crc32(np.array(sums, np.uint32).tobytes()):08x}"


def _checksum(x: Any) -> int:
    known = _KNOWN.get(id(x))
    if known is not None and known[0]() is x:
        return known[1]
    kind = f"{np.shape(x)} {x.dtype}"
    numbers = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    found = zlib.crc32(numbers.data, zlib.crc32(kind.encode()))
    if isinstance(x, np.ndarray) and not _writeable(x):
        _KNOWN[id(x)] = weakref.ref(x), found
    return found


def _writeable(x: Any) -> bool:
    """Whether somebody can write into an array, or into what it is a view of."""
    while isinstance(x, np.ndarray):
        if x.flags.writeable:
            return True
        x = x.base
    return False


def check_alike(options: Mapping[str, Any], *, own: Sequence[str] = ()) -> None:
    """Refuse options that are not the same in all processes, which all call it.

    Args:
        options: This process's, nested or not; for JSON.
        own: Keys and groups of keys that may differ.

    Raises:
        UserError: Lists what differs, with each process's value.
    """
    flat = {key: value for key, value in leaves(options).items() if not under(key, own)}
    texts = cluster.exchange("options", json.dumps(flat, sort_keys=True, default=str))
    if len({*texts}) == 1:
        return
    all_of_them = [json.loads(text) for text in texts]
    listed = ""
    for key in sorted({key for each in all_of_them for key in each}):
        values = [each.get(key, ABSENT) for each in all_of_them]
        if any(value != values[0] for value in values):
            listed += f"\n  {key}: " + ", ".join(
                f"{value} in process {number}" for number, value in enumerate(values)
            )
    raise UserError(
        f"the processes of this run were not started alike:{listed}\n"
        "Give all of them the same command, script and versions"
    )
