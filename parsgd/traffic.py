"""Bytes that a worker sends, read from its program.

The program of one worker is traced with W workers on a named axis (no devices are
needed, W may be anything) and walked. Each collective contributes its operand's bytes
times what the usual bandwidth-optimal implementation sends per worker, as a mean over
the workers:

===============  =======================  ==========================================
collective       bytes sent per worker    n is
===============  =======================  ==========================================
all-reduce       ``2 (W-1)/W n``          bytes of the reduced array
all-gather       ``(W-1) n``              bytes that this worker contributes
reduce-scatter   ``(W-1)/W n``            bytes of the whole array
all-to-all       ``(W-1)/W n``            bytes of the whole array
permute          ``S/W n``                bytes of the array, which S of W workers send
===============  =======================  ==========================================

Loops multiply by their length. What nothing uses is not counted, for the compiler drops
it; of a ``lax.cond`` the branch that sends most is. Nothing is declared by an
algorithm, so a user's own is counted as truly as a built-in one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr
from jax.interpreters import partial_eval

from parsgd.comm import DEVICES
from parsgd.errors import UserError
from parsgd.lanes import prefixed
from parsgd.varying import forked, over_workers, subjaxprs

BRANCHES = (
    "bytes are the most that a worker may send: of the branches of each lax.cond the "
    "one that sends most is counted, in every round"
)


class Message(NamedTuple):
    """One collective of the program.

    Attributes:
        collective: Its usual name, such as ``all-reduce``.
        dtype: Element type on the wire.
        shape: Shape of the operand.
        count: How often it runs.
        bytes: Bytes sent per worker, all runs together.
        at_most: Whether it is in a branch, where another one sends less.
    """

    collective: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    bytes: float
    at_most: bool = False


class Traffic(NamedTuple):
    """What one worker sends."""

    messages: tuple[Message, ...]

    @property
    def bytes(self) -> float:
        """Bytes sent per worker."""
        return sum(m.bytes for m in self.messages)

    @property
    def at_most(self) -> bool:
        """Whether it may be less, as the program's branches go."""
        return any(m.at_most for m in self.messages)

    @property
    def calls(self) -> dict[str, int]:
        """How often each collective is called."""
        out: dict[str, int] = {}
        for m in self.messages:
            out[m.collective] = out.get(m.collective, 0) + m.count
        return out

    def by_collective(self) -> dict[str, float]:
        """Bytes per collective."""
        out: dict[str, float] = {}
        for m in self.messages:
            out[m.collective] = out.get(m.collective, 0.0) + m.bytes
        return out


def all_reduce_bytes(size: float, workers: int) -> float:
    """What each worker sends in an all-reduce of ``size`` bytes that sends the least.

    Example:
        >>> all_reduce_bytes(400, 4)
        600.0
    """
    return 2 * (workers - 1) / workers * size


def _factor(primitive: str, workers: int, params: dict) -> tuple[str, float] | None:
    share = (workers - 1) / workers
    match primitive:
        case "psum" | "pmax" | "pmin" | "psum_invariant":
            return "all-reduce", all_reduce_bytes(1, workers)
        case "all_gather" | "all_gather_invariant":
            return "all-gather", workers - 1
        case "reduce_scatter":
            return "reduce-scatter", share
        case "all_to_all":
            return "all-to-all", share
        case "ppermute":
            return "permute", len([1 for s, t in params["perm"] if s != t]) / workers
    return None


def _counted(name: str, workers: int, params: dict) -> tuple[str, float]:
    if params.get("axis_index_groups"):
        raise ValueError(
            f"{name} over groups of workers is not counted: write it with "
            "parsgd.comm.permute, as parsgd.reducers.algorithms does"
        )
    kind = _factor(name, workers, params)
    if kind is None:
        raise ValueError(
            f"the collective {name} is not counted: use those of parsgd.comm, so that "
            "the bytes of this algorithm are known"
        )
    return kind


def _walk(jaxpr: Jaxpr, workers: int, times: int) -> list[Message]:
    found: list[Message] = []
    for eqn in jaxpr.eqns:
        name, params = eqn.primitive.name, eqn.params
        if over_workers(params) and name != "axis_index":
            kind = _counted(name, workers, params)
            for var in eqn.invars:
                aval: Any = var.aval
                if not aval.size:
                    continue
                size = aval.size * aval.dtype.itemsize * kind[1] * times
                found.append(Message(kind[0], str(aval.dtype), aval.shape, times, size))
        elif name == "cond":
            # Which branch runs is not known here: the one that sends most counts.
            branches = [_walk(b.jaxpr, workers, times) for b in params["branches"]]
            sizes = [sum(m.bytes for m in branch) for branch in branches]
            most = branches[sizes.index(max(sizes))]
            unequal = min(sizes) < max(sizes)
            found += [m._replace(at_most=m.at_most or unequal) for m in most]
        else:
            inner = times * params["length"] if name == "scan" else times
            subs = [s for v in params.values() for s in subjaxprs(v)]
            messages = [m for s in subs for m in _walk(s, workers, inner)]
            if name == "while" and messages:
                raise ValueError(
                    "a collective inside lax.while_loop runs an unknown number of "
                    "times, so its bytes cannot be counted: use lax.scan or fori_loop "
                    "with static bounds"
                )
            found += messages
    return found


def isolated(fn: Callable, workers: int, args: Sequence[Any]) -> bool:
    """Whether ``fn`` neither communicates nor asks for its rank.

    Args:
        fn: One worker's program.
        workers: W.
        args: Arrays or ``jax.ShapeDtypeStruct``, as one worker sees them.

    Returns:
        True if no operation, in loops and inner functions too, is one between workers.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd import comm, traffic
        >>> traffic.isolated(lambda x: x + comm.rank(), 4, [jnp.zeros(3)])
        False
    """

    def quiet(jaxpr: Jaxpr) -> bool:
        return all(
            not over_workers(eqn.params)
            and all(quiet(s) for v in eqn.params.values() for s in subjaxprs(v))
            for eqn in jaxpr.eqns
        )

    return quiet(jax.make_jaxpr(fn, axis_env=[(DEVICES, workers)])(*args).jaxpr)


def trace(fn: Callable, workers: int, *args: Any, shared: Any = True) -> Traffic:
    """What one worker sends in one call of ``fn``.

    Args:
        fn: One worker's program; calls `parsgd.comm`.
        workers: W.
        *args: Arrays or ``jax.ShapeDtypeStruct``, as one worker sees them.
        shared: Which of them are equal on all workers: a bool for all of ``args``, or
            for each a bool or a tree of them.

    Returns:
        A `Traffic` of the program's collectives; without any if W is 1.

    Raises:
        UserError: A collective in a branch that only some workers may take.
        ValueError: A collective that is not counted: one of an unknown kind, one over
            groups of workers, or one in a ``lax.while_loop``.

    Example:
        >>> import jax.numpy as jnp
        >>> from parsgd import comm, traffic
        >>> traffic.trace(comm.mean, 4, jnp.zeros(1000)).by_collective()
        {'all-reduce': 6000.0}
    """
    if workers == 1:
        return Traffic(())
    whole = jax.make_jaxpr(fn, axis_env=[(DEVICES, workers)])(*args).jaxpr
    # Without what no output depends on, in loops and inner functions too.
    used, kept = partial_eval.dce_jaxpr(whole, [True] * len(whole.outvars))
    varies = jax.tree.leaves(prefixed(lambda same, _: not same, shared, args))
    if name := forked(used, [v for v, k in zip(varies, kept, strict=True) if k]):
        raise UserError(
            f"a lax.cond decides whether workers call a collective ({name}) by what "
            "may differ between them: those that do not call it leave the others "
            "waiting. Let all decide alike, as by lax.cond(comm.maximum(flag) > 0, "
            "...), or choose from what was sent with jnp.where"
        )
    return Traffic(tuple(_walk(used, workers, 1)))
