"""Parts that named methods share: clipping, leaf rules, steps that all skip."""

import jax
import numpy as np
import optax
import pytest
from composed import build
from tiny import tiny

import parsgd

SMALL = ("task.model.features=[4]", "placement=vmap", "worker_batch=4", "samples=24")
PARTS = (
    "strategy.min_size=100",
    "strategy.bucket=true",
    "strategy.skip_nonfinite=true",
)


@pytest.mark.parametrize(
    "options",
    [
        *(("strategy=ef_sign_sgd", part) for part in PARTS),
        *(("strategy=one_bit_sgd", part, "strategy.levels=leaf") for part in PARTS),
        ("strategy=one_bit_sgd", "strategy.clip_before=0.01"),
        ("strategy=one_bit_sgd", "strategy.clip_after=0.01"),
        ("strategy=sync_sgd", "+strategy.clip_after=0.01"),
        ("strategy=sync_sgd", "+strategy.clip_before=0.01"),
    ],
    ids=" ".join,
)
def test_named_methods_hand_their_parts_on(options):
    """The run is another one than without the part, or skips nothing."""
    ends = []
    for words in (options, [o for o in options if "levels" in o or "." not in o]):
        made = build(*words, "workers=2", *SMALL)
        made.arguments.update(evaluations=1, train_examples=8)
        run = parsgd.fit(made.task, made.strategy, **made.arguments)
        assert run.status == "completed"
        ends.append((run.history[-1]["train_loss"], run.summary["bytes_per_round"]))
    skips = "strategy.skip_nonfinite=true" in options
    assert (ends[0][0] == ends[1][0]) == skips
    # To agree whether to skip costs 4 bytes.
    assert (ends[0][1] == ends[1][1] + 4) or not skips


class Lines(parsgd.Observer):
    """Keeps what a run says."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


@pytest.mark.parametrize(
    ("make", "more"),
    [
        (parsgd.sync_sgd, {}),
        (parsgd.ef_sign_sgd, {}),
        (parsgd.one_bit_sgd, {}),
        (parsgd.one_bit_sgd, {"start_step": 2}),
    ],
)
def test_G1_a_step_that_is_not_finite_on_one_worker_is_skipped_by_all(make, more):
    task = tiny(32)
    x = np.array(task.data.train.x)
    x[5] = np.nan  # one example of all
    task = task._replace(data=task.data._replace(train=task.data.train._replace(x=x)))
    run = parsgd.fit(
        task, make(optax.sgd(0.1, 0.9), skip_nonfinite=True, **more), workers=4,
        worker_batch=2, epochs=2, max_bad_rounds=9, train_examples=4, evaluations=1,
        observer=(lines := Lines()),
    )  # fmt: skip
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(run.readout))
    at_fault = [line for line in lines.said if "gradient not finite" in line]
    assert len({line.split(":")[0] for line in at_fault}) <= 2  # one in each epoch
    assert at_fault and "steps skipped" not in " ".join(at_fault)
