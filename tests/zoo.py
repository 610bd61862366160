"""One row per algorithm; every battery of tests runs over every row."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import oracles
from byte_counts import (
    all_reduced,
    gathered,
    hierarchical,
    one_bit_columns,
    sparse,
)
from zoo_compressed import MORE, ROWS
from zoo_two_sided import TWO_SIDED

import parsgd
from parsgd import comm
from parsgd.compressors import top_k
from parsgd.core import Algorithm, Strategy


class Row(NamedTuple):
    """An algorithm and what is known of it.

    Attributes:
        make: ``(optimizer) -> algorithm``.
        local_steps: H to test it with.
        oracle: See `oracles`.
        sent: ``(parameter shapes, W) -> bytes`` that a worker sends in one round.
        shared: Whether all workers have the same parameters between rounds.
        identical: Whether they have in every step.
        plain: Whether one worker with it is the plain optimizer, bit for bit.
        resets: Whether local momentum is reset, so that it is plain without only.
        per_worker: Whether the update depends on W or the rank, not just on the data.
    """

    make: Callable[[optax.GradientTransformation], Algorithm]
    local_steps: int
    oracle: Callable[..., Any]
    sent: Callable[[Any, int], float]
    shared: bool = True
    identical: bool = False
    plain: bool = True
    resets: bool = False
    per_worker: bool = False


def top_fifth(v: Any) -> Any:
    """`top_k` with density 0.2, by sorting."""
    return oracles._largest(v, 0.2)


def in_pairs(optimizer: optax.GradientTransformation) -> Strategy:
    """Hierarchical `sync_sgd` of groups of two, or of one where W is odd."""

    def local(grads, state, params):
        group = 1 if comm.world() % 2 else 2
        method = parsgd.sync_sgd(optimizer, algorithm="hierarchical", group=group)
        return method.local(grads, state, params)

    return parsgd.sync_sgd(optimizer, algorithm="ring")._replace(local=local)


def _compressed(rows: dict[str, tuple]) -> dict[str, Row]:
    return {
        name: Row(make, h, oracle, sent, **facts)
        for name, (make, h, oracle, sent, facts) in rows.items()
    }


ZOO = {
    "single": Row(parsgd.single, 1, oracles.single, lambda *_: 0.0, shared=False),
    "sync_sgd": Row(parsgd.sync_sgd, 1, oracles.sync_sgd, all_reduced, identical=True),
    "local_sgd": Row(parsgd.local_sgd, 3, oracles.local_sgd, all_reduced),
    "local_sgd average": Row(
        lambda opt: parsgd.local_sgd(opt, momentum_policy="average"),
        3,
        lambda *a, **k: oracles.local_sgd(*a, **k, policy="average"),
        lambda shapes, w: 2 * all_reduced(shapes, w),
    ),
    "local_sgd reset": Row(
        lambda opt: parsgd.local_sgd(opt, momentum_policy="reset"),
        3,
        lambda *a, **k: oracles.local_sgd(*a, **k, policy="reset"),
        all_reduced,
        resets=True,
    ),
    "post_local_sgd": Row(
        lambda opt: parsgd.post_local_sgd(opt, switch_step=6),
        3,
        lambda *a, **k: oracles.local_sgd(*a, **k, switch=6),
        all_reduced,
    ),
    "block_momentum": Row(
        parsgd.block_momentum,
        3,
        oracles.block_momentum,
        all_reduced,
        resets=True,
        per_worker=True,
    ),
    "block_momentum nesterov": Row(
        lambda opt: parsgd.block_momentum(opt, eta=0.6, nesterov=True),
        3,
        lambda *a, **k: oracles.block_momentum(*a, **k, eta=0.6, nesterov=True),
        all_reduced,
        plain=False,
    ),
    "block_momentum cntk": Row(
        lambda opt: parsgd.block_momentum(
            opt, eta=0.4, zeta=0.8, nesterov=True, gain="cntk"
        ),
        3,
        lambda *a, **k: oracles.block_momentum(
            *a, **k, eta=0.4, zeta=0.8, nesterov=True, gain="cntk"
        ),
        all_reduced,
        plain=False,
        per_worker=True,
    ),
    "block_momentum fairseq": Row(
        lambda opt: parsgd.block_momentum(
            opt, eta=0.4, zeta=0.8, nesterov=True, gain="fairseq"
        ),
        3,
        lambda *a, **k: oracles.block_momentum(
            *a, **k, eta=0.4, zeta=0.8, nesterov=True, gain="fairseq"
        ),
        all_reduced,
        plain=False,
    ),
    "diloco": Row(
        parsgd.diloco,
        3,
        oracles.diloco,
        all_reduced,
        plain=False,
    ),
    "one_bit_sgd": Row(
        parsgd.one_bit_sgd,
        1,
        oracles.one_bit_sgd,
        one_bit_columns,
        identical=True,
        plain=False,
    ),
    "one_bit_sgd leaf": Row(
        lambda opt: parsgd.one_bit_sgd(opt, levels="leaf", start_step=4),
        1,
        lambda *a, **k: oracles.one_bit_sgd(*a, **k, column=False, start=4),
        gathered(lambda n: -(-n // 8) + 8),
        identical=True,
        plain=False,
    ),
    "sync_sgd ring": Row(
        lambda opt: parsgd.sync_sgd(opt, algorithm="ring"),
        1,
        oracles.sync_sgd,
        lambda shapes, w: sum(
            2 * (w - 1) * 4 * -(-int(np.prod(s)) // w) for s in shapes
        ),
        identical=True,
    ),
    "sync_sgd tree": Row(
        lambda opt: parsgd.sync_sgd(opt, algorithm="tree"),
        1,
        oracles.sync_sgd,
        all_reduced,
        identical=True,
    ),
    "top_k": Row(
        lambda opt: parsgd.compressed_sgd(
            opt, reducer=parsgd.error_feedback(top_k(density=0.2))
        ),
        1,
        lambda *a, **k: oracles.compressed_sgd(*a, **k, code=top_fifth, feedback="ef"),
        gathered(sparse(0.2)),
        identical=True,
        plain=False,
    ),
    "top_k ef21": Row(
        lambda opt: parsgd.compressed_sgd(opt, reducer=parsgd.ef21(top_k(density=0.2))),
        1,
        lambda *a, **k: oracles.compressed_sgd(
            *a, **k, code=top_fifth, feedback="ef21"
        ),
        gathered(sparse(0.2)),
        identical=True,
        plain=False,
    ),
    "sign_sgd_majority": Row(
        parsgd.sign_sgd_majority,
        1,
        oracles.sign_majority,
        lambda shapes, w: (w - 1) * (-(-sum(int(np.prod(s)) for s in shapes) // 8) + 4),
        identical=True,
        plain=False,
    ),
    **_compressed(ROWS),
}

# Not in every battery: what they share with rows of the zoo is held there.
MORE_ROWS = {
    "sync_sgd hierarchical": Row(
        in_pairs, 1, oracles.sync_sgd, hierarchical, identical=True
    ),
    **_compressed(MORE | TWO_SIDED),
}


def shapes_of(tree: Any) -> list[tuple[int, ...]]:
    """Shapes of a tree's leaves."""
    return [x.shape for x in jax.tree.leaves(tree)]
