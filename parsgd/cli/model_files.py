"""The files of an exported model: it replaces an earlier export, and nothing else."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parsgd.checkpoint.quiet import quiet
from parsgd.errors import UserError, first_line
from parsgd.results.writing import write_atomic

FILE, ORBAX = "model.safetensors", "orbax"
ABOUT = "parsgd"  # in the metadata of the former


def refuse_others(out: Path) -> None:
    """Refuse a folder in which something else has the names of the files.

    Raises:
        UserError: Names it.
    """
    ours = _is_export(out / FILE)
    known = {out / FILE: ours, out / ORBAX: ours and _is_orbax(out / ORBAX)}
    for path, replaceable in known.items():
        if os.path.lexists(path) and not replaceable:
            raise UserError(
                f"{path} would be replaced, and it is not what an earlier export of a "
                "model left there: choose another folder with out=DIR, or move it away"
            )


def write(out: Path, arrays: Mapping[str, np.ndarray], about: Any) -> None:
    """Write a model; what an earlier export left stays until all of it is there.

    Args:
        out: The folder.
        arrays: By name.
        about: Of the model, for JSON.

    Raises:
        UserError: It cannot be written.
    """
    from safetensors.numpy import save

    # One entry, for the library writes several in any order: a model is one file.
    content = save({**arrays}, {ABOUT: json.dumps(about, sort_keys=True)})
    try:
        out.mkdir(parents=True, exist_ok=True)
        drafts = Path(tempfile.mkdtemp(prefix=f".{ORBAX}.", dir=out))
        try:
            # Orbax has no arrays without a number in them.
            _write_orbax(drafts / "new", {n: x for n, x in arrays.items() if x.size})
            write_atomic(out / FILE, content)
            if (out / ORBAX).exists():
                (out / ORBAX).rename(drafts / "old")
            (drafts / "new").rename(out / ORBAX)
        finally:
            shutil.rmtree(drafts, ignore_errors=True)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{out} cannot be written ({_reason(error)}): make room, or choose another "
            "folder with out=DIR"
        ) from error


def _write_orbax(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    import orbax.checkpoint as ocp

    # Process 0 writes it alone; Orbax would wait for the others.
    alone = ocp.options.MultiprocessingOptions(active_processes={0})
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    with quiet(), ocp.Checkpointer(handler, multiprocessing_options=alone) as writer:
        writer.save(folder.resolve(), arrays)


def _is_export(file: Path) -> bool:
    from safetensors import safe_open

    try:
        with safe_open(file, "numpy") as opened:
            return ABOUT in (opened.metadata() or {})
    except Exception:  # of a type of its own
        return False


def _is_orbax(folder: Path) -> bool:
    whole = (folder / "_METADATA").is_file()
    return whole or (folder.is_dir() and not any(folder.iterdir()))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    number = re.search(r"os_error_code='(\d+)'", str(error))  # of Orbax's writers
    return os.strerror(int(number[1])) if number else first_line(error)
