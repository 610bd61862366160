"""Arrays of process 0, for where processes might compute different ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parsgd.placement.devices import Placement

PROCESSES = "processes"  # axis of a mesh with one device of each process


def of_the_first(tree: Any, placement: Placement) -> Any:
    """Process 0's arrays, on the hosts of all processes.

    JAX's own broadcast makes a copy on each device that there is.
    """
    first: dict[int, Any] = {}
    for device in placement.devices:
        first.setdefault(device.process_index, device)
    mesh = Mesh(np.array([first[i] for i in sorted(first)]), (PROCESSES,))
    rows, same = (NamedSharding(mesh, PartitionSpec(x)) for x in (PROCESSES, None))

    def stacked(x):
        own = jax.device_put(jnp.asarray(x)[None], first[jax.process_index()])
        shape = (len(first), *own.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, rows, [own])

    pick = jax.jit(lambda tree: jax.tree.map(lambda x: x[0], tree), out_shardings=same)
    picked = pick(jax.tree.map(stacked, tree))
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), picked)
