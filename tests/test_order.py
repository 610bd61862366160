"""The data order: E1, E2, E4 (epochs, shards, resume), A6 and D8 (odd sizes)."""

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from parsgd.data import Order
from parsgd.data.order import shared_batch
from parsgd.errors import UserError


def test_E1_order_differs_between_epochs_and_repeats_for_the_same_seed():
    order = Order(examples=64, worker_batch=64, seed=3)
    index, _ = order.indices(0, 3)
    assert not np.array_equal(index[0], index[1])
    assert not np.array_equal(index[1], index[2])
    again, _ = Order(examples=64, worker_batch=64, seed=3).indices(0, 3)
    np.testing.assert_array_equal(index, again)
    other, _ = Order(examples=64, worker_batch=64, seed=4).indices(0, 3)
    assert not np.array_equal(index[0], other[0])


@pytest.mark.parametrize("examples", [7, 8, 9, 64])
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("tail", ["drop", "weight"])
def test_E2_shards_are_disjoint_and_complete(examples, workers, tail):
    if workers > examples:
        with pytest.raises(UserError, match="use at most workers=7"):
            Order(examples=examples, workers=workers, worker_batch=1, tail=tail)
        return
    order = Order(examples=examples, workers=workers, worker_batch=1, tail=tail)
    for epoch in range(3):
        steps = order.steps_per_epoch
        index, weight = order.indices(epoch * steps, steps)
        real = index if weight is None else index[weight > 0]
        used = np.sort(real.ravel())
        assert len(np.unique(used)) == len(used) == examples - order.dropped
        assert order.samples_per_epoch == len(used)
    assert order.dropped == (examples % workers if tail == "drop" else 0)


def test_every_worker_count_sees_the_same_global_batches():
    whole, _ = Order(examples=50, workers=1, worker_batch=12, seed=1).indices(0, 9)
    for workers in (2, 3, 4, 6, 12):
        order = Order(examples=50, workers=workers, worker_batch=12 // workers, seed=1)
        index, _ = order.indices(0, 9)
        np.testing.assert_array_equal(index.reshape(9, 12), whole.reshape(9, 12))


def test_E4_resume_continues_the_epoch_and_the_next_one():
    order = Order(examples=64, workers=2, worker_batch=2, seed=5)
    whole, _ = order.indices(0, 40)
    resumed, _ = Order(examples=64, workers=2, worker_batch=2, seed=5).indices(5, 35)
    np.testing.assert_array_equal(whole[5:], resumed)
    for epoch in range(2):
        used = whole[epoch * 16 : (epoch + 1) * 16].ravel()
        np.testing.assert_array_equal(np.sort(used), np.arange(64))


@settings(deadline=None, max_examples=60)
@given(
    examples=st.integers(1, 40),
    workers=st.integers(1, 5),
    worker_batch=st.integers(1, 6),
    start=st.integers(0, 50),
    count=st.integers(0, 50),
    tail=st.sampled_from(["drop", "weight"]),
)
def test_any_window_is_a_slice_of_the_step_by_step_order(
    examples, workers, worker_batch, start, count, tail
):
    assume(workers * worker_batch <= examples)
    order = Order(
        examples=examples, workers=workers, worker_batch=worker_batch, tail=tail
    )
    index, weight = order.indices(start, count)
    assert index.shape == (count, workers, worker_batch) and index.dtype == np.int32
    for i in range(count):
        one, one_weight = order.indices(start + i, 1)
        np.testing.assert_array_equal(index[i], one[0])
        if weight is not None:
            assert one_weight is not None
            np.testing.assert_array_equal(weight[i], one_weight[0])


def test_A6_drop_says_what_it_drops():
    order = Order(examples=10, workers=4, worker_batch=2)
    assert order.steps_per_epoch == 1 and order.dropped == 2
    assert order.describe() == "2 of 10 samples dropped per epoch (global_batch 8)"
    assert order.indices(0, 3)[1] is None


def test_one_sample_is_singular():
    order = Order(examples=1, workers=1, worker_batch=1)
    assert order.describe() == "all 1 sample in every epoch (global_batch 1)"
    with pytest.raises(UserError, match="more than the 1 training example: "):
        Order(examples=1, workers=2, worker_batch=1)


def test_A6_weight_gives_the_exact_mean_of_the_last_two_samples():
    order = Order(examples=10, workers=4, worker_batch=2, tail="weight")
    assert order.steps_per_epoch == 2 and order.dropped == 0
    index, weight = order.indices(0, 4)
    assert weight is not None and weight.dtype == np.float32
    loss = np.random.default_rng(0).normal(size=10)
    for step in (1, 3):
        real = index[step][weight[step] > 0]
        assert len(real) == 2
        weighted = (weight[step] * loss[index[step]]).mean(axis=1).mean()
        np.testing.assert_allclose(weighted, loss[real].mean(), rtol=1e-6)
    np.testing.assert_array_equal(weight[[0, 2]], 1.0)
    # The padding is real data: the epoch's first examples.
    # Real ones and padding are dealt to the workers in turn.
    np.testing.assert_array_equal(
        weight[1], [[4.0, 0.0], [4.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    )
    np.testing.assert_array_equal(
        np.sort(index[1][weight[1] == 0]), np.sort(index[0].ravel()[:6])
    )
    assert "2 of 8, weighted exactly" in order.describe()


def test_A6_no_weights_when_the_batches_divide_the_data():
    order = Order(examples=16, workers=2, worker_batch=4, tail="weight")
    assert order.indices(0, 5)[1] is None
    assert order.describe() == "all 16 samples in every epoch (global_batch 8)"


@pytest.mark.parametrize(
    ("global_batch", "advice"),
    [
        (2, "use global_batch=4, or workers=2."),
        (10, "use global_batch=8 or 12, or workers=2 or 5."),
    ],
)
def test_D8_global_batch_that_four_workers_cannot_share(global_batch, advice):
    with pytest.raises(UserError) as error:
        shared_batch(global_batch, workers=4)
    assert f"global_batch={global_batch}" in str(error.value)
    assert "workers=4" in str(error.value)
    assert str(error.value).endswith(advice)


def test_D8_advice_is_valid_for_every_size():
    for workers in range(1, 9):
        for batch in range(1, 40):
            if batch % workers == 0:
                shared_batch(batch, workers=workers)
                continue
            with pytest.raises(UserError) as error:
                shared_batch(batch, workers=workers)
            batches, counts = (
                str(error.value).split("use global_batch=")[1].split(", or workers=")
            )
            for value in batches.split(" or "):
                assert int(value) % workers == 0
            for value in counts.rstrip(".").split(" or "):
                assert batch % int(value) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers=0"),
        ({"worker_batch": 0}, "worker_batch=0"),
        ({"seed": -1}, "seed=-1"),
        ({"tail": "wrap"}, "choose 'drop' or 'weight'"),
        ({"workers": 4, "worker_batch": 5}, "use worker_batch=2 or less"),
        ({"workers": 12}, "use at most workers=10"),
    ],
)
def test_sizes_that_cannot_work_say_what_can(arguments, message):
    with pytest.raises(UserError, match=message):
        Order(examples=10, **arguments)


def test_negative_windows_are_refused():
    with pytest.raises(UserError, match="start=-1"):
        Order(examples=4).indices(-1, 2)
