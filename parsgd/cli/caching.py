"""Where compiled programs are kept."""

import logging
import os
from pathlib import Path

import jax

log = logging.getLogger(__name__)


def cache_compilations() -> None:
    """Keep compiled programs in the user's cache folder, for the next job or process.

    ``PARSGD_CACHE`` names another folder; a cache folder that JAX was told of stays. A
    user without a home folder, as in some containers, has no cache.
    """
    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    try:
        folder = _folder()
    except RuntimeError as error:
        log.warning(
            "compiled programs are not kept (%s): name a folder with PARSGD_CACHE",
            error,
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(folder / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _folder() -> Path:
    if own := os.environ.get("PARSGD_CACHE"):
        return Path(own).expanduser()
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache).expanduser() / "parsgd"
    return Path.home() / ".cache" / "parsgd"
