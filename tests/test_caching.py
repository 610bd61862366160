"""Where compiled programs are kept, also for a user without a home folder."""

import logging
import os
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
    monkeypatch.setattr(os, "access", lambda *args: True)
    caching._warn.cache_clear()
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


@pytest.mark.parametrize("exists", [False, True])
def test_a_cache_that_cannot_be_written_is_told_once(
    kept, monkeypatch, tmp_path, caplog, exists
):
    (tmp_path / ("jax" if exists else "other")).mkdir()
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append(path))
    monkeypatch.setenv("PARSGD_CACHE", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        caching.cache_compilations()
        caching.cache_compilations()
    assert not kept and {*asked} == {tmp_path / "jax" if exists else tmp_path}
    assert caplog.text.count(f"{tmp_path / 'jax'} cannot be written") == 1


def test_a_file_is_no_cache(kept, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PARSGD_CACHE", str(tmp_path / "file"))
    caching.cache_compilations()
    assert not kept and "cannot be written" in caplog.text
