"""What a job leaves on disk, and the table that compares jobs.

A job is one run of one configuration with one seed. Its folder holds

``config.yaml``
    the resolved configuration, with the base learning rate before scaling;
``metrics.jsonl``
    one JSON object per evaluation, the first at round 0: ``round, step, samples,
    epoch, seconds`` (training only: compilation and evaluation are timed apart),
    ``batch_loss`` (mean training loss since the last evaluation; null at round 0),
    ``train_loss, test_loss, test_accuracy`` (of the readout), ``bytes`` (sent by one
    worker since the start), ``spread`` (rms distance of the workers to their mean over
    the norm of the mean), ``learning_rate``;
``result.json``
    written last, and whole: ``schema, status`` (completed, diverged or failed; of a job
    whose process was killed beneath a sweep interrupted, which the sweep writes),
    ``reason, config, overrides, choices, started, summary, final, best, versions,
    machine``.

Numbers that are not finite are stored as null. A folder with ``config.yaml`` and
``metrics.jsonl`` but no ``result.json`` is an interrupted job.

Writing is `begin`, `append` per evaluation, `finish`, all within `held`; reading is
`load`, comparing is `table`. Nothing here draws, and nothing here imports jax.
"""

from parsgd.environment import machine, versions
from parsgd.results.export import (
    markdown,
    readable,
    write_csv,
    write_markdown,
    write_parquet,
)
from parsgd.results.groups import Group, group
from parsgd.results.reading import Job, load, read_job
from parsgd.results.table import COLUMNS, Column, table
from parsgd.results.target import Target, targets
from parsgd.results.writing import SCHEMA, append, begin, finish, held, write_atomic

__all__ = [
    "COLUMNS",
    "SCHEMA",
    "Column",
    "Group",
    "Job",
    "Target",
    "append",
    "begin",
    "finish",
    "group",
    "held",
    "load",
    "machine",
    "markdown",
    "read_job",
    "readable",
    "table",
    "targets",
    "versions",
    "write_atomic",
    "write_csv",
    "write_markdown",
    "write_parquet",
]
