"""Which values of a worker's program may differ between workers.

What comes of a worker's own data, random numbers or rank varies; a sum, a maximum or a
gather over all workers is equal on all of them, and so is what comes of equal values.
A ``lax.cond`` whose condition varies must not hold a collective: the workers that take
another branch never come to it.
"""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from parsgd.comm import DEVICES

AGREED = "equal_on_all"  # the call that `parsgd.comm.agreed` makes
EQUAL = (
    "all_gather",
    "all_gather_invariant",
    "pmax",
    "pmin",
    "psum",
    "psum_invariant",
)


def forked(jaxpr: Jaxpr, varies: Sequence[bool]) -> str | None:
    """The collective in a branch that only some workers may take, or None.

    Args:
        jaxpr: One worker's program.
        varies: Of each input whether it may differ between workers.

    Returns:
        The name of its primitive, such as ``psum``.
    """
    found: list[str] = []
    _follow(jaxpr, varies, found)
    return found[0] if found else None


def subjaxprs(value: Any) -> list[Jaxpr]:
    """The programs in a parameter of a primitive."""
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    if isinstance(value, tuple | list):
        return [j for v in value for j in subjaxprs(v)]
    return []


def over_workers(params: dict) -> bool:
    """Whether a primitive with these parameters is one between workers."""
    names = params.get("axes", params.get("axis_name", ()))
    return DEVICES in (names if isinstance(names, tuple) else (names,))


def collectives(jaxpr: Jaxpr) -> list[str]:
    """The primitives between workers, those of inner programs too; no ranks."""
    found = []
    for eqn in jaxpr.eqns:
        if over_workers(eqn.params) and eqn.primitive.name != "axis_index":
            found.append(eqn.primitive.name)
        for value in eqn.params.values():
            found += [name for sub in subjaxprs(value) for name in collectives(sub)]
    return found


def _follow(jaxpr: Jaxpr, varies: Sequence[bool], found: list[str]) -> list[bool]:
    """Of each output whether it may differ; what is forked is added to ``found``."""
    known = dict(zip(jaxpr.invars, varies, strict=True))

    def of(var: Any) -> bool:
        return not isinstance(var, Literal) and known.get(var, False)

    for eqn in jaxpr.eqns:
        out = _outputs(eqn, [of(var) for var in eqn.invars], found)
        known |= dict(zip(eqn.outvars, out, strict=True))
    return [of(var) for var in jaxpr.outvars]


def _outputs(eqn: Any, varies: list[bool], found: list[str]) -> list[bool]:
    name, params = eqn.primitive.name, eqn.params
    if params.get("name") == AGREED:
        return [False] * len(eqn.outvars)
    if over_workers(params):
        return [name not in EQUAL] * len(eqn.outvars)
    if name == "cond":
        differs, *operands = varies
        branches = [branch.jaxpr for branch in params["branches"]]
        if differs:
            found += [one for branch in branches for one in collectives(branch)]
        outs = [_follow(branch, operands, found) for branch in branches]
        return [differs or any(out) for out in zip(*outs, strict=True)]
    if name == "scan":
        consts, carries = params["num_consts"], params["num_carry"]
        fixed, carry = varies[:consts], varies[consts : consts + carries]
        rest = varies[consts + carries :]
        body = params["jaxpr"].jaxpr
        carry = _settled(
            lambda c: _follow(body, [*fixed, *c, *rest], [])[:carries], carry
        )
        return _follow(body, [*fixed, *carry, *rest], found)
    if name == "while":
        n_test, n_body = params["cond_nconsts"], params["body_nconsts"]
        test, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
        of_test, of_body = varies[:n_test], varies[n_test : n_test + n_body]

        def turn(carry: list[bool]) -> list[bool]:
            differs = _follow(test, [*of_test, *carry], [])[0]
            return [differs or c for c in _follow(body, [*of_body, *carry], [])]

        return _settled(turn, varies[n_test + n_body :])
    for value in params.values():
        for sub in subjaxprs(value):
            if len(sub.invars) == len(varies) and len(sub.outvars) == len(eqn.outvars):
                return _follow(sub, varies, found)
    return [any(varies)] * len(eqn.outvars)


def _settled(turn: Any, carry: list[bool]) -> list[bool]:
    """What a loop carries, when no further turn lets more of it vary."""
    while True:
        after = [a or b for a, b in zip(carry, turn(carry), strict=True)]
        if after == carry:
            return carry
        carry = after
