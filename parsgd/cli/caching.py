"""Where compiled programs are kept."""

import os
from pathlib import Path

import jax


def cache_compilations() -> None:
    """Keep compiled programs in the user's cache folder, for the next job or process.

    ``PARSGD_CACHE`` names another folder; a cache folder that JAX was told of stays.
    """
    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("PARSGD_CACHE") or Path(home) / "parsgd")
    jax.config.update("jax_compilation_cache_dir", str(folder.expanduser() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
