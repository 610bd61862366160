"""The exceptions for what a user can mend, and words for all others."""

import math
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_STAGE = "in stage "


class UserError(ValueError):
    """A mistake in what was asked, with a message that says what, why and what to do.

    The console command prints the message alone (``debug=true`` shows the traceback);
    in a script it is an ordinary ``ValueError``.
    """


class FolderError(UserError):
    """A folder that cannot take a run; nothing in it was changed."""


def first_line(error: BaseException) -> str:
    r"""What an error says first; its type where it says nothing.

    Example:
        >>> first_line(ValueError("  no room\n  at all")), first_line(KeyError())
        ('no room', 'KeyError')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def by_interrupt(error: BaseException | None) -> bool:
    """Whether it came of Ctrl-C, as when a module was being imported."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Have errors say in which stage of a run they were raised.

    Args:
        name: Such as ``"local"``, as the note of ``placement=debug`` has it.

    Example:
        >>> try:
        ...     with stage("local"):
        ...         1 / 0
        ... except ZeroDivisionError as error:
        ...     raised_at(error)
        " (in stage 'local')"
    """
    try:
        yield
    except Exception as error:
        error.add_note(f"{_STAGE}{name!r}")
        raise


def reason_of(error: BaseException) -> str:
    """In one line, or the lines of a mistake: what it is and where it came from."""
    if isinstance(error, UserError):
        return str(error)
    return f"{type(error).__name__}: {first_line(error)}{raised_at(error)}"


def raised_at(error: BaseException) -> str:
    """Where in a user's own code it was raised, as in `` (my_code.py:12)``; or nothing.

    Neither parsgd's own lines nor those of installed packages count. The stage of the
    run is named too, where it is known.
    """
    notes = "\n".join(getattr(error, "__notes__", ()))  # the innermost is the first
    found = re.findall(rf"^{_STAGE}'.+?'", notes, re.MULTILINE)[:1]
    line = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        installed = {"site-packages", "dist-packages"} & {*path.parts}
        if path.is_file() and not installed and not path.is_relative_to(HERE):
            inside = path.is_relative_to(Path(traceback.__file__).parent)
            line = line if inside else f"{path.name}:{frame.lineno}"
    text = ", ".join(filter(None, [line, *found]))
    return f" ({text})" if text else ""


def check_accuracy(name: str, value: object) -> None:
    """Refuse a value that is not an accuracy.

    Args:
        name: What the value is of.
        value: As given.

    Raises:
        UserError: It is not in [0, 1].
    """
    if not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise UserError(f"{name}={value}: must be a fraction between 0 and 1")


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Refuse what is not a whole number of at least ``least``.

    Raises:
        UserError: ``value`` is not; names the argument and its value.

    Example:
        >>> check_whole("levels", 2.5)
        Traceback (most recent call last):
        parsgd.errors.UserError: levels=2.5: give a whole number, 1 or more
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise UserError(f"{name}={value}: give a whole number, {least} or more")


def check_positive(name: str, value: Any, more: str = "") -> None:
    """Refuse what is not a number above 0 and finite.

    Args:
        name: What the value is of.
        value: As given.
        more: What else the argument takes, for the message.

    Raises:
        UserError: ``value`` is not one; names the argument and its value.

    Example:
        >>> check_positive("zeta", -1.0)
        Traceback (most recent call last):
        parsgd.errors.UserError: zeta=-1.0: give a positive, finite number
    """
    try:
        good = not isinstance(value, bool | str) and 0 < float(value) < math.inf
    except (TypeError, ValueError):
        good = False
    if not good:
        raise UserError(f"{name}={value}: give a positive, finite number{more}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse what is none of the choices.

    Raises:
        UserError: ``value`` is none; names the argument, its value and the choices.

    Example:
        >>> check_choice("norm", "l3", ["l1", "l2"])
        Traceback (most recent call last):
        parsgd.errors.UserError: norm='l3': choose one of l1, l2
    """
    if value not in (listed := list(choices)):  # a value need not be hashable
        raise UserError(f"{name}={value!r}: choose one of {', '.join(listed)}")


def check_transformation(name: str, value: object) -> None:
    """Refuse what is not an optax transformation, such as a learning rate.

    Raises:
        UserError: ``value`` is not one; names the argument.
    """
    # By its functions: optax.MultiSteps is one too, and no subclass.
    parts = (getattr(value, "init", None), getattr(value, "update", None))
    if not all(map(callable, parts)):
        raise UserError(
            f"{name}={value!r}: give an optax transformation, such as optax.sgd(0.1)"
        )
