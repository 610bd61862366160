"""What a run does when the system asks its process to end."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

ENDED = 128 + signal.SIGTERM  # the exit code, as a shell would report it


@contextlib.contextmanager
def on_sigterm(act: Callable[[], None]) -> Iterator[None]:
    """Within it SIGTERM calls ``act``; afterwards it does what it did before."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may ask for signals
        return
    before = signal.signal(signal.SIGTERM, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
