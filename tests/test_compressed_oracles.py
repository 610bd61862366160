"""Methods that are not in every battery of the zoo, against their oracles and bytes."""

import pytest
import test_strategies
import test_traffic
from zoo import MORE_ROWS


@pytest.fixture(autouse=True)
def rows(monkeypatch):
    """The tests of the zoo's rows see these."""
    monkeypatch.setattr(test_strategies, "ZOO", MORE_ROWS)
    monkeypatch.setattr(test_traffic, "ZOO", MORE_ROWS)


@pytest.mark.parametrize("workers", [1, 3, 4])
@pytest.mark.parametrize("name", MORE_ROWS)
def test_follows_its_oracle(name, workers):
    test_strategies.test_follows_its_oracle(name, workers)


@pytest.mark.parametrize("workers", [3, 64])
@pytest.mark.parametrize("name", MORE_ROWS)
def test_K4_bytes_equal_the_formula(name, workers):
    test_traffic.test_K4_bytes_equal_the_formula(name, workers)
