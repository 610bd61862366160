"""Dense averaging of gradients over all workers."""

import optax

from parsgd import comm
from parsgd.errors import UserError, check_choice
from parsgd.reducers import algorithms

ALGORITHMS = ("native", "ring", "tree", "hierarchical")


def all_reduce(
    *, algorithm: str = "native", group: int | None = None
) -> optax.GradientTransformation:
    """Average over workers: ``g <- mean(g)``.

    Put it before an optimizer and every worker takes the same step:
    ``optax.chain(all_reduce(), optax.sgd(0.1, 0.9))``. Transformations before it see
    the worker's own gradient, those after it the average, so clipping before or after
    the reduction is a matter of order in the chain.

    Args:
        algorithm: ``"native"``: the platform's own collective. ``"ring"``, ``"tree"``
            or ``"hierarchical"``: written out as messages between pairs of workers, see
            `parsgd.reducers.algorithms`; to study them, or for a network that the
            platform does not know. These send half-precision leaves as ``float32``,
            for their sums would be rounded at every hop.
        group: Neighbouring workers that form a group of the hierarchical form, such as
            those of one machine; a divisor of W. None for the other forms.

    Returns:
        An optax transformation without state.

    Raises:
        UserError: Unknown ``algorithm``; ``group`` missing with the hierarchical form
            or given with another; or, from ``update``, a ``group`` that does not divide
            W.

    Example:
        >>> import jax, jax.numpy as jnp, parsgd
        >>> reducer = parsgd.all_reduce()
        >>> g = jnp.array([1.0, 3.0])  # of two workers
        >>> each = lambda g: reducer.update(g, reducer.init(g))[0]
        >>> jax.vmap(each, axis_name=parsgd.comm.LANES)(g)
        Array([2., 2.], dtype=float32)

    References:
        Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of
        Workstations", J. Parallel and Distributed Computing 69, 2009 (ring). Thakur,
        Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
        MPICH", Int. J. High Performance Computing Applications 19, 2005 (tree). Mikami
        et al., "Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash",
        2018, arXiv:1811.05233 (hierarchical: within groups, then across them).

    Differences from the papers:
        Whole arrays and plain steps, without the papers' pipelining or overlap with the
        computation of gradients.
    """
    check_choice("algorithm", algorithm, ALGORITHMS)
    if (group is None) == (algorithm == "hierarchical"):
        raise UserError(
            f"algorithm={algorithm!r} with group={group}: group is the size of the "
            "hierarchical algorithm's groups, given there and only there"
        )

    def update(updates, state, params=None):
        del params
        if algorithm == "native":
            return comm.mean(updates), state
        if group is not None:
            return algorithms.hierarchical(updates, group), state
        average = algorithms.ring if algorithm == "ring" else algorithms.tree
        return average(updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
