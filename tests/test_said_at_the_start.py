"""What a run says before its first step."""

import optax
import pytest
from composed import build, compose
from tiny import tiny

import parsgd
from parsgd import comm
from parsgd.config import objects
from parsgd.placement.devices import place
from parsgd.training.plan import make_plan


@pytest.mark.parametrize("policy", ["keep", "average", "reset"])
def test_C8_the_policy_for_momentum_is_said(policy):
    given = f"strategy.momentum_policy={policy}"
    made = build("strategy=local_sgd", given, "workers=2")
    assert f"local optimizer's state at the end of a round: {policy}" in made.lines


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("strategy=local_sgd", "workers=8"), True),
        (("strategy=diloco", "workers=8", "local_steps=1"), True),
        (("strategy=post_local_sgd", "workers=8"), True),
        (("strategy=local_sgd", "workers=8", "scaling=sqrt"), False),
        (("strategy=local_sgd", "workers=1"), False),
        (("strategy=local_sgd", "workers=8", "scaling.reference_batch=256"), False),
        (("strategy=sync_sgd", "workers=8"), False),
        (("strategy=one_bit_adam", "workers=8"), False),
    ],
)
def test_an_adam_of_each_worker_is_not_scaled_by_its_own_batch(options, said):
    usual = ("optimizer=adam", "scaling=adam_sqrt", "worker_batch=32")
    made = build(*usual, "scaling.reference_batch=128", *options)
    line = (
        "warning: b1, b2 and eps are scaled for the global batch of 256, but here each "
        "worker has an Adam of its own, which sees a batch of 32: scaling=sqrt leaves "
        "them alone"
    )
    assert (line in made.lines) == said


@pytest.mark.parametrize(
    ("strategy", "optimizer", "said"),
    [
        ("block_momentum", "prodigy", True),
        ("local_sgd", "prodigy", False),
        ("block_momentum", "schedule_free_sgd", False),
    ],
)
def test_a_reset_of_an_estimated_rate_is_said(strategy, optimizer, said):
    config = compose(f"strategy={strategy}", "workers=2")
    target = f"optax.contrib.{optimizer}"
    config.optimizer = {"_target_": target, "learning_rate": 1.0}
    made = objects.build(config)
    line = (
        f"warning: {target} estimates its own rate, and "
        "momentum_policy=reset has it begin with the smallest in every round: use "
        "strategy.momentum_policy=keep"
    )
    assert (line in made.lines) == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("scaling=none", "scaling.warmup_epochs=5"), True),
        (("scaling=none",), False),
        (("scaling=sqrt", "scaling.warmup_epochs=5"), False),
    ],
)
def test_a_warm_up_of_no_rule_is_said_to_be_unused(given, said):
    lines = build(*given, "workers=2").lines
    line = "scaling.warmup_epochs=5 is not used: with scaling=none there is no other "
    assert any(one.startswith(line) for one in lines) == said


def test_one_is_singular():
    assert "vmap: 1 worker = 1 cpu device x 1 lane (" in place(1).describe()
    (line, _) = make_plan(40, workers=1, worker_batch=40, epochs=1).describe(1)
    assert line.startswith("1 worker x worker_batch 40 = global_batch 40; 1 step and")


@pytest.mark.parametrize("kind", ["auto", "shard_map"])
def test_fewer_devices_than_cores_are_said(monkeypatch, kind):
    for count, said in ((4, False), (16, True)):
        monkeypatch.setattr("parsgd.cores.usable", lambda count=count: range(count))
        line = place(8, kind=kind).describe()
        more = "JAX had started with 4 devices before: set jax_num_cpu_devices before"
        assert (more in line) == said
    assert "JAX had started" not in place(8, kind=kind, devices=2).describe()


class Lines(parsgd.Observer):
    """Keeps what is said before the first step."""

    def start(self, summary, lines):
        self.lines = lines


@pytest.mark.parametrize("devices", [1, 2])
def test_replicas_on_one_device_are_said_to_be_none(devices):
    told = Lines()
    parsgd.fit(
        tiny(), parsgd.sync_sgd(optax.sgd(0.1)), workers=2, worker_batch=4, rounds=1,
        devices=devices, check_replicas=True, observer=told,
    )  # fmt: skip
    none = "check_replicas: there is one device, so there are no copies to compare"
    assert (none in told.lines) == (devices == 1)


@pytest.mark.parametrize("workers, said", [(1, False), (3, True)])
@pytest.mark.parametrize("method", [parsgd.single, parsgd.data_parallel])
def test_workers_that_send_nothing_are_no_free_method(method, workers, said):
    told = Lines()
    run = parsgd.fit(
        tiny(), method(optax.sgd(0.1)), workers=workers, worker_batch=4,
        rounds=2, observer=told,
    )  # fmt: skip
    assert (
        any(line.startswith("nothing is sent: each of") for line in told.lines) == said
    )
    assert repr(run).startswith("Run(completed, 2 steps, test_accuracy=")
    assert repr(run).endswith(" 0 bytes sent per worker)")


@pytest.mark.parametrize("method, said", [("single", True), ("sync_sgd", False)])
def test_votes_on_what_to_skip_are_not_an_exchange(method, said):
    told = Lines()
    optimizer = parsgd.reducers.skip_nonfinite(optax.sgd(0.1))
    parsgd.fit(
        tiny(), getattr(parsgd, method)(optimizer), workers=3, worker_batch=4,
        rounds=2, observer=told,
    )  # fmt: skip
    line = "nothing but whether to skip a step is sent: each of the 3 workers"
    assert any(text.startswith(line) for text in told.lines) == said


def _x(params, state):
    return comm.mean(optax.contrib.schedule_free_eval_params(state, params))


@pytest.mark.parametrize(
    ("method", "optimizer", "said"),
    [
        (parsgd.sync_sgd, optax.contrib.schedule_free_sgd, True),
        (parsgd.local_sgd, optax.contrib.schedule_free_adamw, True),
        (parsgd.local_sgd, optax.adamw, False),
        (lambda o: parsgd.block_momentum(o, eta=0.5),
         optax.contrib.schedule_free_sgd, True),
        (parsgd.diloco, optax.contrib.schedule_free_sgd, True),
        (lambda o: parsgd.sync_sgd(optax.chain(optax.clip(1.0), o)),
         optax.contrib.schedule_free_sgd, True),
        (lambda o: parsgd.local_sgd(o)._replace(readout=_x),
         optax.contrib.schedule_free_sgd, False),
    ],
)  # fmt: skip
def test_a_schedule_free_optimizer_that_is_evaluated_at_y_is_said(
    method, optimizer, said
):
    told = Lines()
    parsgd.fit(
        tiny(), method(optimizer(0.1)), workers=2, worker_batch=4, rounds=2,
        local_steps=1, observer=told,
    )  # fmt: skip
    warned = [line for line in told.lines if "is evaluated at y" in line]
    assert len(warned) == said


@pytest.mark.parametrize(("start", "said"), [(3, True), (9, True), (2, False)])
def test_a_change_that_never_comes_is_said(start, said, capsys):
    method = parsgd.one_bit_sgd(optax.sgd(0.1), start_step=start)
    parsgd.fit(
        tiny(), method, workers=2, worker_batch=4, rounds=3, observer=parsgd.Progress()
    )
    line = f"warning: the algorithm would change at step {start}, and the run has 3"
    assert (line in capsys.readouterr().out) == said
