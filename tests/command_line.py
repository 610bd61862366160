"""Runs the command in tests: in this process, or in one of its own."""

import os
import subprocess
import sys

import absl.logging
import pytest

from parsgd.cli import job, main

SHORT = ("epochs=1", "evaluations=1")


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Runs the command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(sys, "path", [*sys.path])
    # Hydra closes all log handlers, and absl's would close pytest's capture with it.
    handler = absl.logging.get_absl_handler().python_handler
    monkeypatch.setattr(handler, "stream", sys.__stderr__)
    # Other tests count compilations: leave JAX's settings alone.
    monkeypatch.setattr(job, "cache_compilations", lambda: None)

    def run(*arguments):
        try:
            code = main(arguments)
        except SystemExit as error:
            code = error.code
        return code, *capsys.readouterr()

    return run


def in_new_process(tmp_path, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "parsgd.cli", *arguments],
        cwd=tmp_path,
        env=os.environ | {"PARSGD_CACHE": str(tmp_path / "cache")} | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
