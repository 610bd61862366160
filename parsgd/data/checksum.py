"""A checksum of a data set, which tells whether two runs had the same data."""

import weakref
import zlib
from typing import Any

import numpy as np

from parsgd.data.dataset import Dataset, Standardize

_KNOWN: dict[int, tuple[weakref.ref, int]] = {}


def data_checksum(data: Dataset) -> str:
    """The checksum of both splits' arrays; read-only arrays are read only once.

    Bytes that are standardised column by column are covered together with how: the same
    bytes may be other inputs. One mean for all is left out, as in earlier checksums.
    """
    sums = [_checksum(x) for x in (*data.train, *data.test)]
    how = data.prepare
    if isinstance(how, Standardize) and isinstance(how.mean, tuple):
        sums.append(zlib.crc32(repr(how).encode()))
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
    """Whether an array can be written to, directly or through what it is a view of."""
    while isinstance(x, np.ndarray):
        if x.flags.writeable:
            return True
        x = x.base
    return False
