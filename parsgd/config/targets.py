"""Calls written in a config: which may be made, and what is said when one fails.

A node such as ``{_target_: optax.sgd, learning_rate: 0.1}`` is a call. Only targets of
the packages in `ALLOWED` are called, and those that the user names: on the command line
or in a folder given by ``--config-dir``. A config that comes with somebody's results
cannot choose code.
"""

import functools
import inspect
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate

from parsgd.config.call_errors import ALLOWED, explained, last_line
from parsgd.config.messages import nearest
from parsgd.errors import UserError
from parsgd.flat import under

# Of these packages, what makes the parts of a run: nothing that starts programs or
# writes files, and no other module that one of them happens to import.
_PARTS = ("strategies", "reducers", "compressors", "models", "data", "core", "gradient")
_PARTS += ("tasks", "losses", "scaling")
ORIGINS = ("optax", "flax.linen", "flax.nnx", *(f"parsgd.{part}" for part in _PARTS))
_TARGET = re.compile(r"_target_['\"]?\s*[=:]\s*['\"]?([A-Za-z_][\w.]*)")


def named_packages(
    arguments: Iterable[str], folders: Iterable[str | Path] = ()
) -> tuple[str, ...]:
    """Top-level packages of the targets in a command line and in config folders.

    Example:
        >>> named_packages(["workers=2", "+task.model._target_=my_nets.Wide"])
        ('my_nets',)
    """
    texts = [*arguments]
    for folder in folders:
        files = sorted(p for p in Path(folder).rglob("*.y*ml") if p.is_file())
        texts += [file.read_text(errors="replace") for file in files]
    found = [name for text in texts for name in _TARGET.findall(text)]
    return tuple(dict.fromkeys(name.partition(".")[0] for name in found))


def call(
    node: Mapping[str, Any],
    key: str,
    *args: Any,
    allowed: Sequence[str] = ALLOWED,
    **late: Any,
) -> Any:
    """Make the call that ``node`` describes, its nested calls first.

    Args:
        node: Resolved config of the call.
        key: Where it stands, for messages.
        *args: Positional arguments that the config cannot hold.
        allowed: Top-level packages whose functions may be called.
        **late: The same for keyword arguments.

    Raises:
        UserError: The call is not allowed, does not exist, or does not take these
            arguments or values.
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise UserError(no_target(node, key))
    _refuse_references(node, key)
    for place, inner in calls(node, key):
        target = inner["_target_"]
        if not isinstance(target, str) or target.partition(".")[0] not in allowed:
            raise UserError(
                f"{place}._target_={target} is not called: only functions of "
                f"{', '.join(allowed)} are, and those that you name yourself, on the "
                "command line or in a folder given by --config-dir"
            )
        found = _located(place, target)
        _check_origin(place, target, found)
        _check_types(place, inner, found)
    try:
        return instantiate(node, _convert_="all", _partial_=True)(*args, **late)
    except InstantiationException as error:
        raise explained(node, key, error) from error
    except (TypeError, ValueError) as error:
        raise explained(node, key, error) from error


def takes(node: Any, name: str) -> bool:
    """Whether a function of this library that is called has an argument ``name``."""
    function = _own_function(node)
    return callable(function) and name in inspect.signature(function).parameters


def is_call_of(node: Any, function: Any) -> bool:
    """Whether what is called is this function of this library, by whatever name."""
    return _own_function(node) is function


def _own_function(node: Any) -> Any:
    """What of this library a node calls; None if it calls anything else."""
    target = node.get("_target_") if isinstance(node, Mapping) else None
    module, _, attribute = str(target).rpartition(".")
    if module.partition(".")[0] != "parsgd":
        return None
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError):
        return None  # the call itself will tell what is wrong


def wrong(key: str, value: Any, wanted: str) -> UserError:
    """What to say of a call that returns something else than is wanted."""
    return UserError(
        f"{key}._target_ returns a {type(value).__name__}; it must return {wanted}"
    )


def no_target(node: Any, key: str) -> str:
    """What to say of a node that is no call."""
    if isinstance(node, Mapping) and key in node:
        return (
            f"{key}: the chosen file does not begin with `# @package _global_`, so "
            f"that all its keys went below {key}, to {key}.{key} and others. Make that "
            "comment the very first line of the file, before any other comment"
        )
    return (
        f"{key} has no _target_: it must name the function to call, as the files "
        f"in conf/{key} do"
    )


def calls(node: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every node with a ``_target_`` in a config, with the place where it stands."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield key, node
        for name, value in node.items():
            yield from calls(value, f"{key}.{name}")
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from calls(value, f"{key}[{i}]")


def _refuse_references(node: Any, key: str) -> None:
    """Refuse what Hydra would replace again: by calls that nobody has checked."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            _refuse_references(name, f"{key}.{name}")
            _refuse_references(value, f"{key}.{name}")
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            _refuse_references(value, f"{key}[{i}]")
    elif isinstance(node, str) and "${" in node:
        raise UserError(
            f"{key}={node}: a value of a call that still refers to another one, such "
            "as one behind a backslash, is not replaced: give the value itself"
        )


def _check_origin(place: str, target: str, found: Any) -> None:
    """Refuse what an allowed package has for other purposes, or from elsewhere.

    Whoever names a package of their own means what is defined there, and not all that
    it imports: a config that came with results would reach any of it.
    """
    made = found.func if isinstance(found, functools.partial) else found
    origin = getattr(made, "__module__", None) or ""
    package = target.partition(".")[0]
    if package not in ALLOWED and not under(origin, (package, *ORIGINS)):
        raise UserError(
            f"{place}._target_={target} is not called: it is defined in "
            f"{origin or 'no module'}, not in {package}. Call it from a function of "
            f"{package}, and name that"
        )
    if package in ALLOWED and not under(origin, ORIGINS):
        raise UserError(
            f"{place}._target_={target} is not called: of {', '.join(ALLOWED)} only "
            "what makes a strategy, an optimizer, a model or a task is. Call it from a "
            "function of your own, and name that"
        )


def _located(place: str, target: str) -> Any:
    """What a target names."""
    log = logging.getLogger("hydra.utils")
    before, log.disabled = log.disabled, True  # it tells the same in other words
    try:
        return get_object(target)
    except (ImportError, ValueError) as error:
        text = f"{place}._target_={target} cannot be found: {_absence(target, error)}"
        raise UserError(text) from error
    finally:
        log.disabled = before


def _absence(target: str, error: Exception) -> str:
    """What of a target is missing, or fails when it is imported."""
    cause = error.__cause__
    if cause is None or "." not in target:
        return "give MODULE.FUNCTION, such as my_algorithms.soft_averaging"
    package = target.partition(".")[0]
    missing = getattr(cause, "name", None)
    if not isinstance(cause, ModuleNotFoundError):
        return f"{type(cause).__name__}: {last_line(cause)}"
    if missing == package:
        return (
            f"there is no module {package!r}, neither in the current folder, "
            f"{os.getcwd()}, nor among the installed packages"
        )
    if f"{target}.".startswith(f"{missing}."):
        parent, _, name = str(missing).rpartition(".")
        return f"{parent} has no {name!r}.{nearest(name, dir(get_object(str(parent))))}"
    return f"importing it fails, because there is no module {missing!r}"


def _check_types(place: str, node: Mapping[str, Any], function: Any) -> None:
    """Refuse words where the function declares numbers or a list.

    They would pass through many functions and fail at last where no key is known.
    """
    target = node["_target_"]
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:
        return  # it has no signature: the call itself will tell
    for name, value in node.items():
        parameter = signature.parameters.get(name)
        if isinstance(value, str) and parameter is not None:
            wanted = _instead_of_words(parameter.annotation)
            if wanted:
                raise UserError(f"{place}.{name}={value}: {target} takes {wanted}")


def _instead_of_words(annotation: Any) -> str | None:
    """What a parameter takes in words, or None where it may take a string."""
    union = get_origin(annotation) in (Union, UnionType)
    kinds = {
        get_origin(a) or a for a in (get_args(annotation) if union else [annotation])
    }
    words = kinds & {str, object, Any, Path}
    if words or not all(isinstance(kind, type) for kind in kinds):
        return None
    if kinds & {int, float}:
        return "a number"
    if bool in kinds:
        return "true or false"
    return "a list, such as [1,2]" if kinds & {list, tuple, Sequence} else None
