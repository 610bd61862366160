"""The examples that training has used are those of the data order."""

import ledger
import numpy as np
import pytest

import parsgd

PLACES = [("vmap", None), ("shard_map", 2), ("shard_map", 4), ("pmap", 2)]


@pytest.mark.parametrize("place", PLACES, ids=lambda p: f"{p[0]}-{p[1]}")
@pytest.mark.parametrize("method", [parsgd.sync_sgd, parsgd.local_sgd])
def test_E2_workers_together_use_the_batches_of_one(method, place):
    kind, devices = place
    used = ledger.recorded(method, placement=kind, devices=devices, seed=7)
    np.testing.assert_array_equal(used, ledger.ordered(seed=7))


def test_fixed_shards_are_used_as_ordered():
    sizes = {"workers": ledger.WORKERS, "worker_batch": ledger.BATCH}
    want = ledger.ordered(shards="fixed", **sizes)
    for devices in (1, 2, 4):
        used = ledger.recorded(
            parsgd.sync_sgd, placement="shard_map", devices=devices, shards="fixed"
        )
        np.testing.assert_array_equal(used, want)
