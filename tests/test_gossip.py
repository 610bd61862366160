"""C13: gossip on a ring keeps the mean of the parameters and draws workers together.

It is the example of docs/extending.md, as it stands there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from documents import ROOT, blocks

from parsgd import comm
from parsgd.errors import UserError


def ring_gossip():
    (block,) = [
        block
        for block in blocks(ROOT / "docs/extending.md")
        if block.file == "my_gossip.py"
    ]
    namespace = {"__name__": "my_gossip"}
    exec(block.text, namespace)
    return namespace["ring_gossip"](optax.sgd(0.1))


def mixed(x):
    """All workers' parameters after a round without gradients."""
    strategy = ring_gossip()
    sync = lambda x: strategy.sync({"x": x}, strategy.init({"x": x}))[0]["x"]
    return jax.vmap(sync, axis_name=comm.LANES)(x)


@pytest.mark.parametrize("workers", [3, 4, 8])
def test_C13_the_mean_stays_and_the_spread_shrinks_by_the_rings_rate(workers):
    x = np.random.default_rng(0).normal(size=(workers, 5))
    x = jnp.asarray(x, jnp.float32)
    after = np.asarray(mixed(x))
    np.testing.assert_allclose(after.mean(0), x.mean(0), atol=1e-6)
    # The eigenvalues of a ring with weights of a third.
    angles = 2 * np.pi * np.arange(1, workers) / workers
    rate = np.abs(1 / 3 + 2 / 3 * np.cos(angles)).max()
    apart = [float(np.var(v, axis=0).sum()) for v in (x, after)]
    assert apart[1] <= apart[0] * rate**2 + 1e-6
    # Along the slowest wave it is just that.
    wave = jnp.cos(jnp.asarray(angles[0] * np.arange(workers), jnp.float32))[:, None]
    factor = 1 / 3 + 2 / 3 * np.cos(angles[0])
    np.testing.assert_allclose(mixed(wave), factor * wave, atol=1e-6)


def test_C13_a_ring_of_two_is_refused():
    with pytest.raises(UserError, match="a ring has 3 workers or more"):
        mixed(jnp.zeros((2, 5)))
