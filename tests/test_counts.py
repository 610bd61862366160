"""Levels are means of as many entries as there are, in arrays of any size."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest

from parsgd.compressors import one_bit


@pytest.mark.parametrize("size", [4096, 4097, 70_000])
def test_long_arrays_are_counted_as_short_ones(size, monkeypatch):
    v = np.random.default_rng(0).normal(size=size).astype(np.float32)
    code = one_bit(levels="leaf")
    short = code.encode(jnp.array(v))
    module = importlib.import_module("parsgd.compressors.column_sums")
    monkeypatch.setattr(module, "EXACT", 100)
    for a, b in zip(short, code.encode(jnp.array(v)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_long_columns_are_counted_as_short_ones(monkeypatch):
    v = jnp.array(np.random.default_rng(0).normal(size=(500, 3)), jnp.float32)
    short = one_bit().encode(v)
    module = importlib.import_module("parsgd.compressors.column_sums")
    monkeypatch.setattr(module, "EXACT", 100)
    for a, b in zip(short, one_bit().encode(v), strict=True):
        np.testing.assert_array_equal(a, b)


def test_few_negative_entries_among_more_than_float32_counts_to():
    """2^24 + 1,027 of float32 are 2^24 + 1,028."""
    v = jnp.ones(2**24 + 1027, jnp.float32).at[:3].set(-2.0)
    payload = one_bit(levels="leaf").encode(v)
    assert float(payload.low[0]) == -2.0
    np.testing.assert_allclose(payload.high[0], 1.0, rtol=1e-6)
