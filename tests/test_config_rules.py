"""Budgets, batches and rates of a config: one of each, scaled by the rule, and said."""

import math

import jax
import numpy as np
import optax
import pytest
from composed import build, compose
from omegaconf import OmegaConf

import parsgd
from parsgd import UserError
from parsgd.config import objects
from parsgd.config.targets import ALLOWED


def test_command_line_wins_over_a_strategys_local_steps():
    assert compose("strategy=local_sgd").local_steps == 16
    assert compose("strategy=local_sgd", "local_steps=4").local_steps == 4
    assert compose("local_steps=4", "strategy=local_sgd").local_steps == 4
    assert compose().local_steps == 1


@pytest.mark.parametrize("strategy", ["sign_sgd_majority", "demo"])
def test_methods_that_step_by_signs_bring_a_rate_for_them(strategy):
    rate = lambda *words: compose(f"strategy={strategy}", *words).optimizer
    assert rate().learning_rate == rate("optimizer=momentum").learning_rate == 0.003
    assert rate("optimizer.learning_rate=0.5").learning_rate == 0.5
    assert rate("optimizer=momentum")._target_ == "optax.sgd"
    fashion = compose(f"strategy={strategy}", "+experiment=compression")
    assert fashion.optimizer.learning_rate == 0.1  # the experiment's own
    assert compose("strategy=ef_sign_sgd").optimizer.learning_rate == 0.1


@pytest.mark.parametrize("budget", ["samples=1000", "rounds=7", "epochs=3"])
def test_another_budget_replaces_the_default_one(budget):
    arguments = build(budget).arguments
    given = {k: arguments[k] for k in ("epochs", "samples", "rounds")}
    name, _, value = budget.partition("=")
    assert {k: v for k, v in given.items() if v is not None} == {name: float(value)}


def test_D1_exactly_one_batch_and_one_budget():
    made = build("global_batch=64", "workers=4").arguments
    assert (made["worker_batch"], made["global_batch"]) == (None, 64)
    with pytest.raises(UserError, match="exactly one batch size"):
        build("global_batch=64", "worker_batch=16")
    with pytest.raises(UserError, match="exactly one budget"):
        build("samples=100", "epochs=1")


@pytest.mark.parametrize("batch, near", [(2, 4), (10, 8)])
def test_D8_I4_batches_that_do_not_fit_name_keys_and_near_values(batch, near):
    with pytest.raises(UserError) as error:
        build(f"global_batch={batch}", "workers=4")
    for expected in (f"global_batch={batch}", "workers=4", f"global_batch={near}"):
        assert expected in str(error.value)


def test_steps_are_parts_of_the_run():
    made = build(
        "strategy=post_local_sgd", "schedule=cosine", "rounds=null", "samples=3200"
    )
    assert made.config["schedule"]["decay_steps"] == 100
    assert made.config["strategy"]["switch_step"] == 50
    assert made.strategy[1].start == 50
    assert made.arguments["logged_learning_rate"](100) == 0


def test_D2_the_stored_config_keeps_the_unscaled_rate():
    overrides = ("scaling=linear", "workers=8", "scaling.warmup_epochs=0")
    first = build(*overrides)
    assert first.config["optimizer"]["learning_rate"] == 0.1
    assert first.facts["learning_rate"] == pytest.approx(0.8)
    assert first.facts["lr_factor"] == 8
    # Built again from what it stored, twice over: nothing is scaled twice.
    again = first
    for _ in range(2):
        again = objects.build(OmegaConf.create(again.config))
        assert again.config == first.config
        for step in (0, 1, 50):
            rate = again.arguments["logged_learning_rate"](step)
            assert rate == first.arguments["logged_learning_rate"](step)


def test_D4_the_factor_and_both_batches_are_said():
    (line,) = build("scaling=sqrt", "workers=4").lines
    assert "0.1 x 2 = 0.2 (sqrt" in line
    assert "global batch 128 against reference batch 32" in line
    with pytest.raises(UserError, match=r"scaling\.reference_batch"):
        build("scaling=linear", "global_batch=128")


def test_adam_rule_reaches_the_optimizer():
    overrides = ("strategy=single", "optimizer=adam", "scaling=adam_sqrt", "workers=4")
    made = build(*overrides)
    oracle = optax.adam(0.002, b1=0.6, b2=0.996, eps=5e-9)
    params, state, expected = 0.0, made.strategy.init(0.0), oracle.init(0.0)
    for grad in (1.0, -0.5, 0.1):
        before = params
        params, state = made.strategy.local(grad, state, params)
        update, expected = oracle.update(grad, expected)
        assert params - before == pytest.approx(float(update), rel=1e-3)
    assert made.facts["scaled_b1"] == pytest.approx(0.6)
    assert made.config["optimizer"]["b1"] == 0.9
    with pytest.raises(UserError, match="no b1, b2, eps"):
        build("scaling=adam_sqrt")


@pytest.mark.parametrize("strategy", ["one_bit_adam", "zero_one_adam"])
def test_adam_rule_reaches_an_adam_of_its_own(strategy):
    overrides = (f"strategy={strategy}", "workers=4", "optimizer.b2=0.99")
    made = build(*overrides, "scaling=adam_sqrt", "strategy.b1=0.95")
    said = {name: made.facts[f"scaled_{name}"] for name in ("b1", "b2", "eps")}
    assert said == pytest.approx({"b1": 0.8, "b2": 0.96, "eps": 5e-9})
    node = made.config["strategy"]
    assert (node["b1"], node["b2"], node["eps"]) == (0.95, 0.99, 1e-8)
    own = {k: v for k, v in node.items() if k != "_target_"}
    oracle = getattr(parsgd, strategy)(0.002, **own | said)
    ours, theirs = made.strategy[0].strategy, oracle[0].strategy
    params = before = {"w": jax.numpy.zeros(3)}
    state, expected = ours.init(params), theirs.init(before)
    for grad in (1.0, -0.5, 0.1):
        grads = {"w": jax.numpy.full(3, grad)}
        params, state = ours.local(grads, state, params)
        before, expected = theirs.local(grads, expected, before)
        np.testing.assert_allclose(params["w"], before["w"], rtol=1e-5)


@pytest.mark.parametrize(
    "given",
    ["+optimizer.mu_dtype=bfloat16", "optimizer.eps_root=0.1", "optimizer=lamb"],
)
def test_an_adam_of_its_own_refuses_what_it_does_not_take(given):
    key = given.lstrip("+").replace("optimizer=lamb", "optimizer._target_=optax.lamb")
    with pytest.raises(UserError, match=rf"^{key}: parsgd\.one_bit_adam is an Adam"):
        build("strategy=one_bit_adam", given)
    build("strategy=one_bit_adam", "+optimizer.mu_dtype=null")


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop"])
def test_nesterov_without_a_momentum_is_refused(optimizer):
    words = (f"optimizer={optimizer}", "optimizer.nesterov=true")
    with pytest.raises(UserError) as error:
        build(*words)
    said = str(error.value)
    assert said.startswith("optimizer.nesterov=true: without a momentum optax.")
    assert f"optax.{optimizer} " in said and "give optimizer.momentum too" in said
    assert build(*words, "optimizer.momentum=0.9")
    assert build("optimizer=momentum", "optimizer.nesterov=true")
    assert build("optimizer=lars", "optimizer.nesterov=true")


def test_C5_block_momentum_is_said():
    for workers, eta in ((1, "0"), (2, "0.5"), (4, "0.75"), (8, "0.875")):
        lines = build("strategy=block_momentum", f"workers={workers}").lines
        assert f"block momentum eta {eta} (1 - 1/W)" in lines


@pytest.mark.parametrize("batch", ["worker_batch=32", "global_batch=128"])
def test_C5_block_momentum_from_a_time_constant(batch):
    other = "global_batch=null" if batch.startswith("worker") else "worker_batch=null"
    made = build(
        "strategy=block_momentum_time_constant",
        *("workers=4", "local_steps=10", batch, other),
    )
    name = "block_momentum_from_time_constant"
    assert f"block momentum eta 0.726149 ({name})" in made.lines
    assert made.facts["block_momentum_eta"] == pytest.approx(math.exp(-0.32))
    assert "block_momentum_eta" not in build("strategy=local_sgd").facts


def test_C5_a_time_constant_needs_one_batch_size():
    sizes = {"workers": 4, "local_steps": 10}
    with pytest.raises(UserError, match="and got none"):
        parsgd.block_momentum_from_time_constant(4000.0, **sizes)
    with pytest.raises(UserError, match="got worker_batch and global_batch"):
        parsgd.block_momentum_from_time_constant(
            4000.0, **sizes, worker_batch=32, global_batch=128
        )


def test_an_argument_of_another_function_is_not_block_momentum(tmp_path, monkeypatch):
    (tmp_path / "with_eta.py").write_text(
        "import parsgd\n\ndef made(optimizer, *, eta, momentum):\n"
        "    return parsgd.local_sgd(optimizer)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for eta in ("0.5", "null", "fast"):
        given = (f"+strategy.eta={eta}", "+strategy.momentum=some")
        made = build(
            "strategy._target_=with_eta.made", *given, allowed=(*ALLOWED, "with_eta")
        )
        assert not [x for x in made.lines if "momentum" in x or "at the end" in x]


def test_a_time_constant_may_be_numpys_number_and_is_finite():
    sizes = {"workers": np.int64(4), "local_steps": np.int32(10), "worker_batch": 32}
    eta = parsgd.block_momentum_from_time_constant(np.float32(4000), **sizes)
    assert eta == pytest.approx(0.7261, abs=1e-4)
    with pytest.raises(parsgd.UserError, match="time_constant=inf"):
        parsgd.block_momentum_from_time_constant(np.inf, **sizes)


@pytest.mark.parametrize("momentum", ["nan", "-0.1", "1", "2"])
def test_a_momentum_that_grows_is_refused(momentum):
    with pytest.raises(
        UserError, match=r"optimizer\.momentum=.*: give a number from 0"
    ):
        build("optimizer=momentum", f"optimizer.momentum={momentum}")


def test_a_penalty_that_is_no_number_is_refused():
    with pytest.raises(UserError, match="l2=nan: a penalty must be 0 or more"):
        build("task.l2=nan")
