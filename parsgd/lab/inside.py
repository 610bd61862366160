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
    """``fit`` with an observer that reads the interface before its own.

    It also notes the traffic that ``fit`` asks the engine for, to know the calls.
    """
    from parsgd.lab.counters import read
    from parsgd.lab.wire import Wire
    from parsgd.training.engine import Engine
    from parsgd.training.train import Observer

    traffic, numbers = Engine.traffic, itertools.count()

    @functools.wraps(fit)
    def run(*args: Any, observer: Any = None, **kwargs: Any) -> Any:
        programs, number = [], next(numbers)

        def noted(self: Engine, phase: int, local_steps: int) -> Any:
            programs.append(traffic(self, phase, local_steps))
            return programs[-1]

        wire = Wire(observer or Observer(), lambda: read(device), programs)
        Engine.traffic = noted
        try:
            result = fit(*args, observer=wire, **kwargs)
        finally:
            Engine.traffic = traffic
        with file.open("a") as out:
            print(json.dumps({"job": number} | wire.result()), file=out)
        return result

    return run


def main() -> int:
    """Run the command."""
    from parsgd.cli import job
    from parsgd.cli import main as cli

    file, *arguments = sys.argv[1:]
    job.fit = counted(job.fit, Path(file), DEVICE)
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
