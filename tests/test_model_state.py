"""What a model keeps besides parameters: each worker's own, averaged at the readout."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from resumes import assert_same_state, fit, share_engines, stored
from tiny import CLASSES, FEATURES, tiny

import parsgd
from parsgd import UserError
from parsgd.compressors import top_k
from parsgd.training.evaluate import evaluator

SGD = optax.sgd(0.1, 0.9)
METHODS = {
    "sync_sgd": lambda: parsgd.sync_sgd(SGD),
    "local_sgd": lambda: parsgd.local_sgd(SGD),
    "diloco": lambda: parsgd.diloco(SGD),
    "top_k": lambda: parsgd.compressed_sgd(
        SGD, reducer=parsgd.error_feedback(top_k(density=0.2))
    ),
}


def keeping(start, after, *, used=lambda model, batch: batch):
    """The tiny task with a state: ``after(state, batch)`` of each step.

    ``used(state, batch)`` is what the model sees of a batch.
    """
    task = tiny()

    def loss(params, model, batch, key):
        value, _ = task.loss(params, {}, used(model, batch), key)
        return value, after(model, batch)

    return task._replace(
        init=lambda key: (task.init(key)[0], start),
        loss=loss,
        metrics=lambda params, model, batch: task.metrics(
            params, {}, used(model, batch)
        ),
    )


def centered():
    """Inputs less half their moving average, which is state, as is a count of steps."""
    return keeping(
        {"mean": jnp.zeros(FEATURES), "steps": jnp.int32(0)},
        lambda model, batch: {
            "mean": 0.5 * (model["mean"] + jnp.mean(batch.x, axis=0)),
            "steps": model["steps"] + 1,
        },
        used=lambda model, batch: batch._replace(x=batch.x - 0.5 * model["mean"][None]),
    )


@pytest.mark.parametrize("name", ["sync_sgd", "local_sgd"])
def test_F1_the_mean_over_workers_is_evaluated_and_survives(
    name, tmp_path, monkeypatch
):
    share_engines(monkeypatch)
    task, h = centered(), {"sync_sgd": 1, "local_sgd": 3}[name]
    options = {"task": task, "algorithm": METHODS[name](), "local_steps": h}
    run = fit(tmp_path / "a", **options)
    own = stored(tmp_path / "a")[1]["model/mean"]
    assert own.shape == (3, FEATURES) and len({*own[:, 0].tolist()}) == 3
    np.testing.assert_allclose(run.model_state["mean"], own.mean(0), rtol=1e-5)
    score = evaluator(task, task.data.test)
    assert score(run.readout, run.model_state)["loss"] == run.history[-1]["test_loss"]
    assert (
        score(run.readout, {"mean": jnp.zeros(FEATURES)})["loss"]
        != (run.history[-1]["test_loss"])
    )
    # Complete: read from the disk alone.
    again = fit(tmp_path / "a", **options)
    assert (
        score(again.readout, again.model_state)["loss"]
        == (run.history[-1]["test_loss"])
    )
    fit(tmp_path / "b", at=3, **options)
    fit(tmp_path / "b", **options)
    assert_same_state(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("name", ["sync_sgd", "local_sgd"])
def test_F3_whole_numbers_stay_whole_and_must_be_equal(name):
    sizes = {"workers": 3, "worker_batch": 4, "rounds": 5, "evaluations": 1}
    run = parsgd.fit(centered(), METHODS[name](), **sizes)
    assert run.model_state["steps"].dtype == jnp.int32
    assert int(run.model_state["steps"]) == 5
    labels = keeping(
        {"seen": jnp.int32(0)},
        lambda model, batch: {"seen": model["seen"] + jnp.sum(batch.y)},
    )
    with pytest.raises(UserError, match=r"\['seen'\] differs .* has no average"):
        parsgd.fit(labels, METHODS[name](), **sizes)
    # One worker has nobody to differ from.
    alone = parsgd.fit(labels, METHODS[name](), **sizes | {"workers": 1})
    assert alone.model_state["seen"].dtype == jnp.int32


@pytest.mark.parametrize("name", METHODS)
def test_A2_one_row_on_all_workers_is_one_worker(name):
    task = centered()
    split = task.data.train
    same = type(split)(*(np.repeat(a[:1], len(a), axis=0) for a in split))
    task = task._replace(data=task.data._replace(train=same))
    h = 3 if name in ("local_sgd", "diloco") else 1
    sizes = {"local_steps": h, "worker_batch": 2, "rounds": 4, "evaluations": 4}
    one, four = (
        parsgd.fit(task, METHODS[name](), workers=workers, **sizes)
        for workers in (1, 4)
    )
    for a, b in zip(one.history, four.history, strict=True):
        for key in ("train_loss", "test_loss", "batch_loss"):
            assert a[key] == (None if b[key] is None else pytest.approx(b[key], 1e-5))
    assert one.history[0]["train_loss"] > one.history[-1]["train_loss"]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        (one.readout, one.model_state),
        (four.readout, four.model_state),
    )


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (
            lambda model: {"sown": (model["sown"][0], 1.0 + model["sown"][0])},
            r"\['sown'\]\[1\] is nothing before and float32\[\] after",
        ),
        (lambda model: {}, r"\['sown'\]\[0\] is float32\[\] before and nothing after"),
        (
            lambda model: {"sown": (model["sown"][0].astype(jnp.int32),)},
            r"is float32\[\] before and int32\[\] after",
        ),
        (lambda model: {"sown": [*model["sown"]]}, "structure of the model's state"),
    ],
)
def test_a_model_must_keep_the_structure_of_its_state(after, message):
    task = keeping({"sown": (jnp.float32(0),)}, lambda model, batch: after(model))
    with pytest.raises(UserError, match=message):
        parsgd.fit(task, parsgd.sync_sgd(SGD), worker_batch=4, rounds=1)


@pytest.mark.parametrize(("parts", "end"), [(1, 0.25), (2, 0.0625)])
def test_state_of_a_narrower_type_is_stored_in_its_own(parts, end):
    halved = lambda model: jnp.asarray(0.5 * model["last"], jnp.bfloat16)
    start = {"last": jnp.float32(1)}
    task = keeping(start, lambda model, batch: {"last": halved(model)})
    run = parsgd.fit(
        task, parsgd.sync_sgd(SGD), worker_batch=4, rounds=2, micro_batches=parts
    )
    assert run.model_state["last"] == end


def test_a_loss_returns_a_pair():
    task = tiny()
    alone = task._replace(loss=lambda *args: task.loss(*args)[0])
    with pytest.raises(UserError, match=r"must return \(loss, model_state\), but .* a"):
        parsgd.fit(alone, parsgd.sync_sgd(SGD), worker_batch=4, rounds=1)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda value: jnp.stack([value] * 3), r"float32\[3\]"),
        (lambda value: value.astype(jnp.int32), r"int32\[\]"),
    ],
)
def test_a_loss_is_one_floating_point_number(change, kind):
    task = tiny()

    def loss(*args):
        value, model = task.loss(*args)
        return change(value), model

    with pytest.raises(UserError, match=f"loss is {kind}: return one floating-point"):
        parsgd.fit(
            task._replace(loss=loss), parsgd.sync_sgd(SGD), worker_batch=4, rounds=1
        )


def test_what_a_linen_module_sows_must_be_among_the_intermediates():
    class Sowing(nn.Module):
        place: str

        @nn.compact
        def __call__(self, x):
            self.sow(self.place, "h", jnp.sum(x))
            return nn.Dense(CLASSES)(x)

    run = {"worker_batch": 4, "rounds": 1}
    task = parsgd.classification(tiny().data, Sowing("intermediates"))
    parsgd.fit(task, parsgd.sync_sgd(SGD), **run)
    task = parsgd.classification(tiny().data, Sowing("losses"))
    with pytest.raises(UserError, match=r"'losses'\]\['h'\]\[1\] is nothing before"):
        parsgd.fit(task, parsgd.sync_sgd(SGD), **run)
