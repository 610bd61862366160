"""Four CPU devices, no silent rank promotion; warnings are errors (pyproject.toml)."""

import jax

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Most of the tests' time is compilation; results do not depend on this.
jax.config.update("jax_disable_most_optimizations", True)
