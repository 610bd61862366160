"""Where compiled programs are kept, also for a user without a home folder."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from parsgd.cli import caching


@pytest.fixture
def kept(monkeypatch):
    """What JAX is told."""
    told = {}
    config = SimpleNamespace(
        jax_compilation_cache_dir=None,
        update=lambda key, value: told.update({key: value}),
    )
    monkeypatch.setattr(caching, "jax", SimpleNamespace(config=config))
    for name in ("PARSGD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return told


@pytest.fixture
def homeless(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"PARSGD_CACHE": "/mine"}, "/mine/jax"),
        ({"XDG_CACHE_HOME": "/theirs"}, "/theirs/parsgd/jax"),
    ],
)
def test_a_cache_that_is_named_needs_no_home(
    kept, homeless, monkeypatch, variables, folder
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    caching.cache_compilations()
    assert kept["jax_compilation_cache_dir"] == folder


def test_without_a_home_a_job_runs_without_a_cache(kept, homeless, caplog):
    with caplog.at_level(logging.WARNING):
        caching.cache_compilations()
    assert not kept
    assert "are not kept" in caplog.text and "PARSGD_CACHE" in caplog.text


def test_the_cache_is_in_the_home_folder(kept, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    caching.cache_compilations()
    assert kept["jax_compilation_cache_dir"] == "/home/me/.cache/parsgd/jax"
