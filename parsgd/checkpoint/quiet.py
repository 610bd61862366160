"""Orbax's log: not shown, but listened to."""

import contextlib
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path


def _of_orbax(record: logging.LogRecord) -> bool:
    return "/orbax/checkpoint/" in Path(record.pathname).as_posix()


def _not_of_orbax(record: logging.LogRecord) -> bool:
    frames = traceback.extract_tb(record.exc_info[2]) if record.exc_info else ()
    files = (Path(frame.filename).as_posix() for frame in frames)
    return "orbax" not in record.getMessage() and not any(
        "/orbax/checkpoint/" in file for file in files
    )


@contextlib.contextmanager
def quiet(tell: Callable[[BaseException], None] | None = None) -> Iterator[None]:
    """Without its log, which shows tracebacks of what is reported anyway.

    Args:
        tell: Is told of what fails in the background. Of several processes one would
            otherwise wait for the others, and they for it, before anybody knew.
    """
    logger, background = logging.getLogger("absl"), logging.getLogger("asyncio")

    def listen(record: logging.LogRecord) -> bool:
        if not _of_orbax(record):
            return True  # somebody else's
        error = record.exc_info[1] if record.exc_info else None
        if tell and error is not None and threading.current_thread() is not main:
            tell(error)
        return False

    main = threading.current_thread()
    logger.addFilter(listen)
    # When one of its writers or readers fails, others fail after it is reported; it is
    # said when they are collected, which may be long after this: the filter stays.
    background.addFilter(_not_of_orbax)
    try:
        yield
    finally:
        logger.removeFilter(listen)
