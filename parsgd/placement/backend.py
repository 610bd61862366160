"""Starting JAX's backend, where it may turn out that there is none."""

import os

import jax

from parsgd import cluster
from parsgd.errors import UserError, first_line


def start() -> None:
    """Start the backend, if it does not run yet.

    Processes of one run start theirs together, when they first need it.

    Raises:
        UserError: There is none of the kind that was asked for.
    """
    if cluster.processes() > 1:
        return
    try:
        jax.local_devices()
    # A platform that nobody installed fails an assertion.
    except (RuntimeError, AssertionError) as error:
        asked = os.environ.get("JAX_PLATFORMS")
        where = f" with JAX_PLATFORMS={asked}" if asked else ""
        why = first_line(error)
        raise UserError(
            f"JAX cannot start{where}{'' if why == 'AssertionError' else f' ({why})'}: "
            "install what the platform needs, such as jax[cuda13], or unset "
            "JAX_PLATFORMS to use what there is"
        ) from error
