"""What is said of a call in a config that fails."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object

from parsgd.config.choices import choices, conf_dir
from parsgd.errors import UserError, raised_at

ALLOWED = ("parsgd", "optax", "flax")  # packages of which a config may call functions


def explained(node: Mapping[str, Any], key: str, error: Exception) -> UserError:
    """The message for an error of a call, with the place of the inner call at fault.

    Args:
        node: The call.
        key: Where it stands.
        error: What it raised.

    Raises:
        TypeError: ``error`` is a fault in somebody's own code.
    """
    text, place = str(error), key
    if match := re.search(r"^full_key: (\S+)$", text, re.MULTILINE):
        # Hydra writes the second of a call's positional arguments as _args__1.
        path = re.sub(r"_args__?(\d+)", r"_args_[\1]", match[1])
        place = f"{key}.{path}"
        for part in path.split("."):
            name, _, index = part.partition("[")
            if not isinstance(node, Mapping) or name not in node:
                break  # an item of a list, as Hydra writes it
            node = node[name]
            if index:
                node = node[int(index.rstrip("]"))]  # type: ignore[index]
    target = str(node.get("_target_")) if isinstance(node, Mapping) else ""
    cause = error.__cause__ if isinstance(error, InstantiationException) else error
    if isinstance(cause, UserError):
        return UserError(f"{place}: {cause}")
    where = raised_at(cause) if cause else ""
    if isinstance(cause, TypeError):
        if where:
            raise cause  # a fault in somebody's own code
        return UserError(_wrong_arguments(place, target, cause))
    reason = last_line(cause or error)
    return UserError(f"{place}: {target} refuses its arguments: {reason}{where}")


def last_line(error: BaseException) -> str:
    """What an error says at its end."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def _wrong_arguments(place: str, target: str, error: TypeError) -> str:
    own = _arguments(target)
    if own is None:
        return f"{place}: {target}: {error}"
    takes = ", ".join(own) or "no arguments"
    if match := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
        text = f"{place}.{match[1]}: {target} has no such argument; it takes {takes}"
        if target.partition(".")[0] in ALLOWED:
            return text
        # Only its target was given, over the arguments of another call.
        if group := _group_of(place):
            text += (
                f". If that argument is of the choice before, put _target_: {target} "
                f"into FOLDER/{group}/NAME.yaml and give --config-dir FOLDER "
                f"{group}=NAME"
            )
        return text
    if "rngs" in own and "'rngs'" in str(error):
        return (
            f"{place}: {target}: {error}. A flax nnx module is made with the run's "
            "random numbers: say _partial_: true beside its _target_"
        )
    return f"{place}: {target}: {error}" + (f"; it takes {takes}" if own else "")


def _arguments(target: str) -> list[str] | None:
    """The names that a function or class takes; None where that is unknown."""
    try:
        found = get_object(target)
        names = [*inspect.signature(found).parameters]
        if inspect.isclass(found) and names == ["args", "kwargs"]:
            # Of the metaclass, as nnx modules have one.
            names = [*inspect.signature(found.__init__).parameters][1:]
    except (ValueError, TypeError, InstantiationException, ImportError):
        return None
    return [name for name in names if name not in ("parent", "name")]  # flax's own


def _group_of(place: str) -> str:
    """The config group whose choice stands at a place, which may be inside others."""
    parts = place.split(".")
    groups = choices(conf_dir())
    paths = ("/".join(parts[i:]) for i in range(len(parts)))
    return next((path for path in paths if path in groups), "")
