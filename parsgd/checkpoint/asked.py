"""What a run does when it is asked to end: by the system, or by Ctrl-C."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def on_request(act: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Within it these signals call ``act``; afterwards they do what they did before."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may ask for signals
        return

    def handle(number: int, frame: object) -> None:
        del frame
        act(signal.Signals(number))

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
