import math

import jax
import numpy as np
import optax
import pytest
from composed import build
from omegaconf import OmegaConf

from parsgd import UserError, scaling
from parsgd.config import schema
from parsgd.config.targets import ALLOWED
from parsgd.training.plan import make_plan

RULES = (scaling.none, scaling.linear, scaling.sqrt, scaling.adam_sqrt)
ADAM = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}


@pytest.mark.parametrize(
    "rule, factor", [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0), ("adam_sqrt", 2.0)]
)
def test_D4_factors_against_a_reference_batch(rule, factor):
    assert getattr(scaling, rule)(reference_batch=256).factor(1024) == factor


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("batch", [1, 3, 48, 100])
def test_D4_every_factor_is_exactly_one_at_the_reference_batch(rule, batch):
    made = rule(reference_batch=batch)
    assert made.factor(batch) == 1
    assert made.hyperparameters(batch, ADAM) in ({}, ADAM)


@pytest.mark.parametrize("rule", RULES[1:])
def test_D4_a_rule_without_a_reference_batch_is_an_error(rule):
    with pytest.raises(UserError, match=r"needs scaling\.reference_batch"):
        rule(reference_batch=None)
    with pytest.raises(UserError, match="reference_batch=0"):
        rule(reference_batch=0)


def test_adam_scales_betas_and_eps():
    scaled = scaling.adam_sqrt(reference_batch=32).hyperparameters(128, ADAM)
    assert scaled == {
        "b1": pytest.approx(0.6),
        "b2": pytest.approx(0.996),
        "eps": pytest.approx(5e-9),
    }


def test_adam_refuses_a_batch_that_takes_a_beta_to_zero():
    rule = scaling.adam_sqrt(reference_batch=10)
    assert rule.hyperparameters(99, ADAM)["b1"] > 0
    with pytest.raises(UserError, match="Stay below 10 times"):
        rule.hyperparameters(100, ADAM)


def test_adam_rule_names_what_another_optimizer_lacks():
    with pytest.raises(UserError, match="no b1, b2, eps"):
        scaling.adam_sqrt(reference_batch=1).hyperparameters(2, {"momentum": 0.9})


def test_warmup_starts_at_the_unscaled_rate_and_ends_at_the_scaled_one():
    rate = scaling.learning_rate(0.1, 8.0, warmup_steps=4)
    assert callable(rate)
    np.testing.assert_allclose(
        [rate(t) for t in (0, 1, 2, 4, 5, 1000)], [0.1, 0.275, 0.45, 0.8, 0.8, 0.8]
    )


def test_constant_rates_stay_numbers():
    assert scaling.learning_rate(0.1) == 0.1
    assert scaling.learning_rate(0.25, 4.0) == 1.0
    assert scaling.learning_rate(0.25, 1.0, warmup_steps=10) == 0.25


def test_D7_a_smaller_batch_has_no_warmup_from_above():
    """The base rate is too high for it: a warm-up rises."""
    assert scaling.learning_rate(0.1, 0.25, warmup_steps=10) == 0.1 * 0.25
    for batch, said in ((8, "no warm-up, which only"), (128, "warm-up from 0.1 over")):
        sizes = (f"global_batch={batch}", "scaling.reference_batch=32", "epochs=1")
        made = build("scaling=linear", *sizes, "optimizer.learning_rate=0.1")
        rate = made.arguments["logged_learning_rate"](0)
        assert float(rate) == pytest.approx(min(0.1, 0.1 * batch / 32))
        assert said in " ".join(made.lines)
        assert ("the warm-up takes" in " ".join(made.lines)) == (batch == 128)


def test_rate_is_the_product_of_base_factor_warmup_and_schedule():
    cosine = optax.cosine_decay_schedule(1.0, 10)
    rate = scaling.learning_rate(0.1, 3.0, warmup_steps=5, schedule=cosine)
    assert callable(rate)
    for t in range(12):
        warm = 1 + 2 * min(t / 5, 1)
        expected = 0.1 * warm * 0.5 * (1 + math.cos(math.pi * min(t, 10) / 10))
        assert float(rate(t)) == pytest.approx(expected, abs=1e-7)


def test_schedule_reaches_the_optimizer_step_by_step():
    rate = scaling.learning_rate(1.0, 4.0, warmup_steps=2)
    optimizer = optax.sgd(rate)
    state, steps = optimizer.init(0.0), []
    for _ in range(4):
        update, state = jax.jit(optimizer.update)(1.0, state)
        steps.append(-float(update))
    assert steps == [1.0, 2.5, 4.0, 4.0]


def test_step_decay_falls_twice_at_a_boundary_that_is_there_twice():
    decay = scaling.step_decay(boundaries=[10, 20, 10], factor=0.5)
    assert [float(decay(step)) for step in (9, 11, 21)] == [1, 0.25, 0.125]


def test_shares_of_the_steps_are_not_cut_by_rounding():
    schema.register(steps=100)
    try:
        for share, steps in ((0.29, 29), (0.57, 57), (0.999, 99), (0.001, 1)):
            assert OmegaConf.create({"at": f"${{steps:{share}}}"}).at == steps
    finally:
        schema.register()


def test_step_decay_checks_its_arguments():
    for wrong in ({"boundaries": [0]}, {"boundaries": [5], "factor": 0.0}):
        with pytest.raises(UserError):
            scaling.step_decay(**wrong)


def test_D5_steps_are_optimizer_steps_not_micro_batches():
    # 100 micro-batches of 2 in groups of 4: 25 steps. The plan's steps are what
    # ${steps:1.0} becomes, so the schedule ends there.
    plan = make_plan(200, worker_batch=8, micro_batches=4, epochs=1)
    assert plan.steps == 25
    schedule = optax.linear_schedule(1.0, 0.0, plan.steps)
    rate = scaling.learning_rate(0.1, schedule=schedule)
    assert callable(rate)
    assert float(rate(24)) > 0
    assert float(rate(25)) == 0


@pytest.mark.parametrize(
    "epochs, warned", [(4, True), (5, True), (5.5, False), (20, False)]
)
def test_D4_a_warm_up_of_the_whole_run_is_told(epochs, warned):
    lines = build("scaling=linear", "workers=4", f"epochs={epochs}").lines
    assert any("no step has the full rate of 0.4" in line for line in lines) == warned
    assert len(build("scaling=linear", "workers=1", f"epochs={epochs}").lines) == 1


def test_an_optimizer_is_known_by_its_functions(tmp_path, monkeypatch):
    (tmp_path / "two_batches.py").write_text(
        "import optax\n\ndef made(learning_rate, momentum, nesterov):\n"
        "    return optax.MultiSteps(optax.sgd(learning_rate), 2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    named = {"allowed": (*ALLOWED, "two_batches")}
    made = build("optimizer._target_=two_batches.made", "strategy=single", **named)
    assert callable(made.strategy.init)
