"""Whether the processes of a run were started with the same options.

Different batches or rates would train something, and nothing would tell.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from parsgd import cluster
from parsgd.errors import UserError
from parsgd.flat import ABSENT, leaves, under


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
