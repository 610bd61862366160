"""Bytes of a text, in windows: the task of predicting the next one."""

import functools
from pathlib import Path

import numpy as np

from parsgd.data.dataset import Dataset, Split, as_tokens, shared
from parsgd.data.rows import existing_file
from parsgd.errors import UserError
from parsgd.words import counted


def load_text(
    *,
    path: str | Path | None = None,
    context: int = 64,
    test_fraction: float = 0.1,
) -> Dataset:
    """Windows of T bytes ``[N, T] uint8`` and the byte after each, 256 classes.

    The text is cut once, by position: its last part is the test split, so no test text
    is in the training split. Windows follow each other without overlap.

    Args:
        path: A UTF-8 file; default, the English prose of Python's own language
            reference as it ships in ``pydoc_data.topics`` (its length depends on the
            version of Python).
        context: T, bytes per window.
        test_fraction: Share of the text held out, in (0, 1).

    Returns:
        A `Dataset`, named ``text`` or like the file.

    Raises:
        UserError: The file is missing, not UTF-8, or too short for one window in each
            split; or an argument is out of range.
    """
    if context < 1 or not 0 < test_fraction < 1:
        raise UserError(
            f"text: context={context} must be at least 1 and "
            f"test_fraction={test_fraction} between 0 and 1."
        )
    if path is None:
        return _windows(None, 0, context, test_fraction)
    file = existing_file(path, "text")
    # A changed file is another text: its time is part of the cache's key.
    return _windows(file, file.stat().st_mtime_ns, context, test_fraction)


@functools.lru_cache(maxsize=4)
def _windows(
    path: Path | None, modified: int, context: int, test_fraction: float
) -> Dataset:
    del modified
    raw = _prose() if path is None else path.read_bytes()
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"text: {path} is not UTF-8 (byte {error.start}): convert it, for example "
            "with iconv -t utf-8."
        ) from error
    tokens = np.frombuffer(raw, np.uint8)
    cut = len(tokens) - round(len(tokens) * test_fraction)
    train, test = _split(tokens[:cut], context), _split(tokens[cut:], context)
    if len(train.x) == 0 or len(test.x) == 0:
        raise UserError(
            f"text: {path or 'the default corpus'} has "
            f"{counted(len(tokens), 'byte')}, too few for one window of "
            f"context={context} in each split with test_fraction={test_fraction}: use "
            "a smaller context or a longer text."
        )
    name = "text" if path is None else path.stem
    return shared(Dataset(name, train, test, 256, as_tokens))


def _split(tokens: np.ndarray, context: int) -> Split:
    count = max(len(tokens) - 1, 0) // context
    used = count * context
    x = tokens[:used].reshape(count, context)
    return Split(x, tokens[1 : used + 1].reshape(count, context))


def _prose() -> bytes:
    from pydoc_data.topics import topics

    return "\n".join(topics[key] for key in sorted(topics)).encode("utf-8")
