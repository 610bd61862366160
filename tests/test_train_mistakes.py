"""What `fit` refuses or warns of, before anything is compiled."""

import math

import jax
import jax.numpy as jnp
import optax
import pytest
from tiny import tiny

import parsgd
from parsgd.core import Phase
from parsgd.errors import UserError
from parsgd.training.observer import Observer


def _wrong(local=None, sync=None):
    def keep(grads, state, params):
        return params, state

    strategy = parsgd.Strategy(lambda params: {"count": jnp.int32(0)}, local or keep)
    return strategy if sync is None else strategy._replace(sync=sync)


@pytest.mark.parametrize(
    "strategy, message",
    [
        (
            _wrong(lambda g, s, p: (jax.tree.map(jnp.float16, p), s)),
            "strategy's local must return .* params.'b1'. changes from float32.16.",
        ),
        (
            _wrong(sync=lambda p, s: (p, {"count": s["count"] + 0.5})),
            "strategy's sync .* state.'count'. changes from int32.. to float32",
        ),
        (_wrong(sync=lambda p, s: (p, {})), "strategy's sync .* structure of state"),
        (_wrong(sync=lambda p, s: p), "strategy's sync .* but returns a dict"),
    ],
)
def test_a_strategy_must_keep_shapes_and_types(strategy, message):
    with pytest.raises(UserError, match=message):
        parsgd.fit(tiny(), strategy, workers=2, worker_batch=4, rounds=2)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"strategy": optax.sgd(0.1)}, "a Strategy, such as parsgd.sync_sgd"),
        ({"task": "digits"}, "a Task, such as parsgd.digits"),
        ({"logged_learning_rate": 0.1}, "logged_learning_rate=0.1: a schedule"),
        (
            {"strategy": parsgd.sync_sgd(optax.polyak_sgd())},
            "needs more than gradients",
        ),
        (
            {
                "strategy": (
                    Phase(0, parsgd.sync_sgd(optax.sgd(0.1))),
                    Phase(2, parsgd.diloco(optax.sgd(0.1))),
                )
            },
            "phase that starts at step 2 keeps another state",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    usual = {"task": tiny(), "strategy": parsgd.sync_sgd(optax.sgd(0.1))}
    with pytest.raises(UserError, match=message):
        parsgd.fit(**(usual | arguments), worker_batch=4, rounds=4)


def test_more_steps_than_can_be_counted_are_refused():
    sizes = {"workers": 1, "worker_batch": 4}
    with pytest.raises(UserError, match=r"steps of each worker, and 2,147,483,647 can"):
        parsgd.fit(tiny(), parsgd.single(optax.sgd(0.1)), **sizes, epochs=1e18)


def test_fractional_steps_are_refused():
    with pytest.raises(ValueError, match=r"start_step=1\.5"):
        parsgd.one_bit_sgd(optax.sgd(0.1), start_step=1.5)
    with pytest.raises(ValueError, match=r"switch_step=2\.5"):
        parsgd.post_local_sgd(optax.sgd(0.1), switch_step=2.5)


def test_parameters_must_have_a_gradient():
    task = tiny()

    def init(key):
        params, model = task.init(key)
        return params | {"count": jnp.int32(3)}, model

    with pytest.raises(UserError, match=r"parameter .'count'. is int32"):
        parsgd.fit(
            task._replace(init=init),
            parsgd.sync_sgd(optax.sgd(0.1)),
            worker_batch=4,
            rounds=2,
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one batch size"),
        ({"worker_batch": 4, "global_batch": 4}, "exactly one batch size"),
        ({"worker_batch": 4, "epochs": 1, "rounds": 3}, "exactly one budget"),
        ({"worker_batch": 4, "epochs": None}, "exactly one budget.*none"),
        ({"worker_batch": 4, "epochs": 0}, "budget must be positive"),
        ({"worker_batch": 4, "epochs": math.inf}, "positive and finite"),
        ({"worker_batch": 4, "epochs": 0.01}, "less than one step"),
        ({"global_batch": 2, "workers": 4}, "global_batch=2.*workers=4"),
        ({"global_batch": 10, "workers": 4}, "global_batch=8 or 12"),
        ({"worker_batch": 200}, "more than the 96"),
        (
            {"global_batch": 2000, "workers": 5},
            "^global_batch=2000 is more than the 96 training examples: "
            "use 95 or less, a multiple of workers=5$",
        ),
        ({"global_batch": 97}, "global_batch=97 is .* examples: use 96 or less$"),
        (
            {"global_batch": 200, "workers": 100},
            "use at most workers=96 and global_batch=96$",
        ),
        ({"worker_batch": 4, "local_steps": 0}, "local_steps=0"),
        (
            {"worker_batch": 4, "local_steps": 2},
            "does nothing at the end of a round.*local_sgd",
        ),
        ({"worker_batch": 4, "workers": 2.0}, "workers=2.0"),
        ({"worker_batch": 4.0}, "worker_batch=4.0"),
        ({"worker_batch": 4, "epochs": None, "rounds": 2.5}, "rounds=2.5"),
        ({"worker_batch": 4, "micro_batches": 3}, "does not divide"),
        ({"worker_batch": 4, "target_accuracy": 90}, "between 0 and 1"),
        ({"worker_batch": 4, "evaluations": 0}, "evaluations=0"),
        ({"worker_batch": 4, "evaluations": 2.5}, "evaluations=2.5"),
        ({"worker_batch": 4, "train_examples": 1e4}, "train_examples=10000.0"),
        ({"worker_batch": 4, "max_bad_rounds": True}, "max_bad_rounds=True"),
        ({"worker_batch": 4, "train_examples": 0}, "train_examples=0"),
        ({"worker_batch": 4, "tail": "keep"}, "'drop' or 'weight'"),
        ({"worker_batch": 4, "seed": -1}, "seed=-1"),
        ({"worker_batch": 4, "seed": 2**32}, "the largest is 4294967295"),
        ({"worker_batch": 4, "seed": 2**63}, "the largest is 4294967295"),
    ],
)
def test_D1_D8_C6_I4_mistakes_are_named_before_anything_compiles(options, message):
    options = {"epochs": 1} | options
    with pytest.raises(parsgd.UserError, match=message):
        parsgd.fit(tiny(), parsgd.sync_sgd(optax.sgd(0.1)), **options)


def test_a_target_that_nothing_measures_is_refused_before_anything_compiles():
    def only_loss(params, model, batch):
        return {"loss": task.metrics(params, model, batch)["loss"]}

    task, started = tiny(), []

    class Watch(Observer):
        def start(self, summary, lines):
            started.append(summary)

    sizes = {"worker_batch": 4, "epochs": 1, "observer": Watch()}
    strategy = parsgd.sync_sgd(optax.sgd(0.1))
    with pytest.raises(UserError, match=r"^target_accuracy=0\.5: .* tiny are loss,"):
        parsgd.fit(
            task._replace(metrics=only_loss), strategy, target_accuracy=0.5, **sizes
        )
    assert not started
    assert parsgd.fit(task._replace(metrics=only_loss), strategy, **sizes).summary


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda m: {"accuracy": m["accuracy"]}, "are accuracy, without a loss: return"),
        (lambda m: {}, "metrics of tiny are none, without a loss"),
        (lambda m: m["loss"], "metrics of tiny are .*: return a dict with a loss"),
        (
            lambda m: m | {"loss": jnp.mean(m["loss"])},
            r"metric loss .* shape \(\) for 2",
        ),
        (lambda m: m | {"top5": jnp.ones((2, 5))}, r"metric top5 .* shape \(2, 5\)"),
        (lambda m: m | {"wave": m["loss"] * 1j}, "metric wave .* is complex64"),
        (lambda m: m | {5: m["loss"]}, "metric 5 .* has a name of type int"),
        (lambda m: m | {"none": None}, "metric none .* is a NoneType"),
    ],
)
def test_metrics_that_cannot_be_averaged_are_refused(changed, message):
    task = tiny()
    odd = task._replace(metrics=lambda *args: changed(task.metrics(*args)))
    strategy = parsgd.sync_sgd(optax.sgd(0.1))
    with pytest.raises(UserError, match=message):
        parsgd.fit(odd, strategy, worker_batch=4, rounds=2)


@pytest.mark.parametrize(
    ("method", "warned"),
    [
        (parsgd.local_sgd(optax.sgd(0.1)), True),
        (parsgd.post_local_sgd(optax.sgd(0.1), switch_step=6), False),
    ],
)
def test_C6_more_local_steps_than_steps_warns(method, warned):
    """But not where a first phase synchronises more often."""
    lines = []

    class Watch(Observer):
        def start(self, summary, said):
            lines.extend(said)

    parsgd.fit(
        tiny(), method, workers=2, worker_batch=4,
        local_steps=100, epochs=1, observer=Watch(),
    )  # fmt: skip
    assert any("exceeds the run's 12 steps" in line for line in lines) == warned


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: parsgd.sync_sgd(0.1), "optimizer"),
        (lambda: parsgd.ef_sign_sgd(0.1), "optimizer"),
        (lambda: parsgd.data_parallel(optax.sgd(0.1), reducer=0.1), "reducer"),
        (lambda: parsgd.local_sgd(optax.sgd(0.1), reducer=0.1), "reducer"),
        (lambda: parsgd.diloco(optax.sgd(0.1), reducer=0.1), "reducer"),
        (lambda: parsgd.block_momentum(optax.sgd(0.1), reducer=0.1), "reducer"),
        (lambda: parsgd.outer_loop(0.1, parsgd.all_reduce()), "inner"),
        (lambda: parsgd.outer_loop(optax.sgd(0.1), 0.1), "outer"),
        (lambda: parsgd.reducers.skip_nonfinite(0.1), "inner"),
    ],
)
def test_what_is_no_transformation_is_named(call, name):
    with pytest.raises(UserError, match=rf"{name}=0\.1: give an optax transformation"):
        call()
