"""Where compiled programs are kept."""

import functools
import logging
import os
from pathlib import Path

import jax

log = logging.getLogger(__name__)


def cache_compilations() -> None:
    """Keep compiled programs in the user's cache folder, for the next job or process.

    ``PARSGD_CACHE`` names another folder; a cache folder that JAX was told of stays. A
    user without a home folder, as in some containers, has no cache, nor has one whose
    folder may not be written: JAX would warn of each program.
    """
    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    try:
        folder = _folder() / "jax"
    except RuntimeError as error:
        _warn(str(error))
        return
    # What is not there yet is made in the nearest that is.
    nearest = next(p for p in (folder, *folder.absolute().parents) if os.path.exists(p))
    if not (os.path.isdir(nearest) and os.access(nearest, os.W_OK | os.X_OK)):
        _warn(f"{folder} cannot be written")
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


@functools.cache  # once, not for each job of a sweep
def _warn(why: str) -> None:
    log.warning(
        "compiled programs are not kept (%s): name a folder with PARSGD_CACHE", why
    )


def _folder() -> Path:
    if own := os.environ.get("PARSGD_CACHE"):
        return Path(own).expanduser()
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache).expanduser() / "parsgd"
    return Path.home() / ".cache" / "parsgd"
