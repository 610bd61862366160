import importlib
import inspect

import hydra
import jax
import optax
import pytest
import yaml
from hydra.errors import HydraException
from omegaconf import OmegaConf

import parsgd
from parsgd import UserError, config
from parsgd.messages import explain
from parsgd.targets import call, named_packages

CONF = config.conf_dir()
FILES = sorted(p.relative_to(CONF).as_posix() for p in CONF.rglob("*/*.yaml"))
STRATEGIES = sorted(p.stem for p in (CONF / "strategy").glob("*.yaml"))


def compose(*overrides, **options):
    config.register()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=list(overrides), **options)


def build(*overrides, **options):
    return config.build(compose(*overrides), **options)


# Files and signatures.

# Where a file differs from the function's default, on purpose.
CHOSEN = {
    "optimizer/momentum.yaml": {"momentum": 0.9},
    "optimizer/lars.yaml": {},
    "schedule/linear.yaml": {"init_value": 1.0, "end_value": 0.0},
}


def calls(node):
    if isinstance(node, dict):
        if "_target_" in node:
            yield node
        for value in node.values():
            yield from calls(value)


@pytest.mark.parametrize("name", FILES)
def test_files_state_the_defaults_of_the_signature(name):
    for node in calls(yaml.safe_load((CONF / name).read_text())):
        module, _, attribute = node["_target_"].rpartition(".")
        target = getattr(importlib.import_module(module), attribute)
        parameters = inspect.signature(target).parameters
        for key, value in node.items():
            # Nested calls and interpolations have no default to compare with.
            if key in ("_target_", "defaults", "model") or "${" in str(value):
                continue
            assert key in parameters, f"{name}: {node['_target_']} takes no {key}"
            default = parameters[key].default
            if default is inspect.Parameter.empty or key in CHOSEN.get(name, {}):
                continue
            default = list(default) if isinstance(default, tuple) else default
            assert value == default, f"{name}: {key}"


@pytest.mark.parametrize("name", [f for f in FILES if f.startswith("strategy/")])
def test_strategy_files_list_every_argument(name):
    (node,) = calls(yaml.safe_load((CONF / name).read_text()))
    target = getattr(parsgd, node["_target_"].removeprefix("parsgd."))
    assert {*node} - {"_target_"} == {*inspect.signature(target).parameters} - {
        "optimizer"
    }


def test_J6_no_choice_is_named_by_digits():
    # Hydra would take workers=4 for a file: numbers are values, never files.
    assert not [name for name in FILES if name.split("/")[-1][0].isdigit()]
    assert compose("workers=4").workers == 4


def test_J8_shipped_experiments_never_set_a_launcher():
    names = [f for f in FILES if f.startswith("experiment/")]
    assert names
    for name in names:
        text = (CONF / name).read_text()
        assert "launcher" not in text, name


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_composes_builds_and_trains_a_round(name):
    small = ("task.model.features=[4]", "placement=vmap", "worker_batch=4")
    made = build(f"strategy={name}", "workers=2", "local_steps=1", "samples=16", *small)
    made.arguments.update(evaluations=1, train_examples=8)
    run = parsgd.fit(made.task, made.strategy, **made.arguments)
    assert run.history[-1]["samples"] == 16


@pytest.mark.parametrize("group", ["optimizer", "schedule", "scaling", "placement"])
def test_every_other_choice_builds(group):
    for path in (CONF / group).glob("*.yaml"):
        optimizer = "adam" if path.stem == "adam_sqrt" else "sgd"
        made = build(f"optimizer={optimizer}", f"{group}={path.stem}", "workers=2")
        assert made.config["workers"] == 2


# Sizes and budgets.


def test_command_line_wins_over_a_strategys_local_steps():
    assert compose("strategy=local_sgd").local_steps == 16
    assert compose("strategy=local_sgd", "local_steps=4").local_steps == 4
    assert compose("local_steps=4", "strategy=local_sgd").local_steps == 4
    assert compose().local_steps == 1


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
    assert made.arguments["learning_rate"](100) == 0


# Scaling.


def test_D2_the_stored_config_keeps_the_unscaled_rate():
    overrides = ("scaling=linear", "workers=8", "scaling.warmup_epochs=0")
    first = build(*overrides)
    assert first.config["optimizer"]["learning_rate"] == 0.1
    assert first.facts["learning_rate"] == pytest.approx(0.8)
    assert first.facts["lr_factor"] == 8
    # Built again from what it stored, twice over: nothing is scaled twice.
    again = first
    for _ in range(2):
        again = config.build(OmegaConf.create(again.config))
        assert again.config == first.config
        for step in (0, 1, 50):
            rate = again.arguments["learning_rate"](step)
            assert rate == first.arguments["learning_rate"](step)


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


def test_C5_block_momentum_is_said():
    for workers, eta in ((1, "0"), (2, "0.5"), (4, "0.75"), (8, "0.875")):
        lines = build("strategy=block_momentum", f"workers={workers}").lines
        assert f"block momentum eta {eta} (1 - 1/W)" in lines


# What a config may call.


def test_only_known_packages_and_those_the_user_names_are_called():
    node = {"_target_": "textwrap.indent", "text": "x", "prefix": ">"}
    with pytest.raises(UserError, match=r"textwrap\.indent is not called"):
        call(node, "task")
    assert call(node, "task", allowed=("textwrap",)) == ">x"
    with pytest.raises(UserError, match=r"task\.model\._target_"):
        call({"_target_": "parsgd.digits", "model": node}, "task")


def test_a_folder_of_the_user_allows_its_targets(tmp_path):
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "x.yaml").write_text("strategy: {_target_: mine.x}\n")
    assert named_packages(["workers=1"], [tmp_path]) == ("mine",)
    assert named_packages(["task._target_=other.y"]) == ("other",)
    assert named_packages(["strategy=local_sgd"]) == ()


def test_nested_calls_reach_a_strategy():
    nested = "{_target_: optax.chain, _args_: [{_target_: parsgd.all_reduce}, "
    nested += "{_target_: optax.sgd, learning_rate: 1.0}]}"
    node = {"_target_": "parsgd.outer_loop", "outer": yaml.safe_load(nested)}
    made = call(node, "strategy", optax.sgd(0.1))
    assert isinstance(made, parsgd.Strategy)
    made.init({"w": jax.numpy.zeros(3)})


@pytest.mark.parametrize(
    "overrides, expected",
    [
        (["+strategy.momentum=keep"], "parsgd.sync_sgd has no such argument"),
        (
            ["strategy=local_sgd", "strategy.momentum=foo"],
            "choose one of keep, average, reset",
        ),
        (
            ["task.model._target_=parsgd.models.Foo"],
            "task.model._target_=parsgd.models",
        ),
        (["task.model.features=[0]"], "features=0"),
        (
            ["~task", "+task={_target_:parsgd.all_reduce}"],
            "must return a parsgd.Task",
        ),
        (["optimizer.learning_rate=fast"], "optimizer.learning_rate=fast"),
        (["task=npz"], "task.path must be given"),
        (["placement.devices=two"], "placement.devices=two"),
    ],
)
def test_wrong_calls_name_the_key_and_what_is_taken(overrides, expected):
    with pytest.raises(UserError) as error:
        build(*overrides)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    "overrides, expected",
    [
        (["strategy=bmfu"], "Choose one of block_momentum, diloco, local_sgd"),
        (["strategy=block_momentm"], "Did you mean block_momentum?"),
        (["wokers=3"], "wokers: there is no key 'wokers'. Did you mean workers?"),
        (["optimizer.momentun=0.9"], "Did you mean momentum?"),
        (["workers=two"], "workers=two"),
        (["workers=1,2"], "add -m to sweep"),
        (["+workers=3"], "leave out the +"),
        (["+experiment=nope"], "Choose one of demo, fashion_mnist"),
        (["a b"], "cannot read the argument 'a b'"),
    ],
)
def test_J4_wrong_overrides_name_the_key_and_the_choices(overrides, expected):
    with pytest.raises(HydraException) as error:
        compose(*overrides)
    assert expected in explain(error.value)


def test_J10_two_launches_have_two_folders():
    folders = set()
    for _ in range(2):
        made = compose(return_hydra_config=True)
        folders |= {made.hydra.run.dir, made.hydra.sweep.dir}
    assert len(folders) == 4
