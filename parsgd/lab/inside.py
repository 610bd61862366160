"""One process of a lab: the command, with its interface read while it trains.

``python -m parsgd.lab.inside FILE COMMAND ...`` writes a JSON line per run to FILE.
"""

import functools
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parsgd.lab.links import DEVICE


def counted(fit: Callable[..., Any], file: Path, device: str) -> Callable[..., Any]:
    """``fit`` with an observer that reads the interface before its own."""
    from parsgd.lab.counters import read
    from parsgd.lab.wire import Wire
    from parsgd.training.observer import Observer

    numbers = itertools.count()

    @functools.wraps(fit)
    def run(*args: Any, observer: Any = None, **kwargs: Any) -> Any:
        number = next(numbers)
        wire = Wire(observer or Observer(), lambda: read(device))
        result = fit(*args, observer=wire, **kwargs)
        with file.open("a") as out:
            print(json.dumps({"job": number} | wire.result()), file=out)
        return result

    return run


def main() -> int:
    """Run the command."""
    from parsgd.cli import job, main

    file, *arguments = sys.argv[1:]
    job.fit = counted(job.fit, Path(file), DEVICE)
    return main(arguments)


if __name__ == "__main__":
    sys.exit(main())
