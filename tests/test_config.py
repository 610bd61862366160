import functools
import importlib
import inspect
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
import yaml
from composed import build, compose
from omegaconf import OmegaConf, open_dict

import parsgd
from parsgd import UserError
from parsgd.config import objects
from parsgd.config.choices import conf_dir
from parsgd.config.chosen import chosen
from parsgd.config.targets import call, named_packages
from parsgd.data.dataset import Dataset, Split, as_floats

CONF = conf_dir()
FILES = sorted(p.relative_to(CONF).as_posix() for p in CONF.rglob("*/*.yaml"))
STRATEGIES = sorted(p.stem for p in (CONF / "strategy").glob("*.yaml"))


# Files and signatures.

# Where a file differs from the function's default, on purpose.
CHOSEN = {
    "feedback/ef_momentum.yaml": {"nesterov": True},  # Zheng et al.'s
    "optimizer/momentum.yaml": {"momentum": 0.9},
    "optimizer/lars.yaml": {},
    "schedule/linear.yaml": {"init_value": 1.0, "end_value": 0.0},
    "strategy/qsgd.yaml": {"norm": "max"},  # as in the paper's experiments
    "strategy/terngrad.yaml": {"share_scale": True},  # the paper's
    "task/model/mlp_128.yaml": {"features": [128]},
}


def calls(node):
    if isinstance(node, dict) and "_target_" in node:
        yield node
    if isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from calls(value)


@pytest.mark.parametrize("name", FILES)
def test_files_state_the_defaults_of_the_signature(name):
    for node in calls(yaml.safe_load((CONF / name).read_text())):
        module, _, attribute = node["_target_"].rpartition(".")
        target = getattr(importlib.import_module(module), attribute)
        parameters = inspect.signature(target).parameters
        for key, value in node.items():
            # Nested calls and interpolations have no default to compare with.
            if key in ("_target_", "_args_", "defaults", "model") or "${" in str(value):
                continue
            if isinstance(value, dict) and "_target_" in value:
                continue
            assert key in parameters, f"{name}: {node['_target_']} takes no {key}"
            default = parameters[key].default
            if default is inspect.Parameter.empty or key in CHOSEN.get(name, {}):
                continue
            default = list(default) if isinstance(default, tuple) else default
            assert value == default, f"{name}: {key}"


# `build` hands it the optimizer (`inner` of an outer loop) or the rate; the choices
# `compressed_*` have a reducer.
LEFT_OUT = {"optimizer", "inner", "learning_rate", "reducer"}
# The default choice has no arguments, so that `strategy._target_=...` replaces it.
PARTS = {"clip_before", "clip_after", "skip_nonfinite"}
BARE = {"strategy/sync_sgd.yaml": {"algorithm", "group", *PARTS}}
METHODS = ("strategy/", "compressor/", "feedback/")


@pytest.mark.parametrize("name", [f for f in FILES if f.startswith(METHODS)])
def test_files_of_methods_list_every_argument(name):
    found = [*calls(yaml.safe_load((CONF / name).read_text()))]
    assert found
    for node in found:
        module, _, attribute = node["_target_"].rpartition(".")
        if module.startswith("parsgd"):
            target = getattr(importlib.import_module(module), attribute)
            missing = {*inspect.signature(target).parameters} - {*node}
            own = LEFT_OUT if name.startswith("strategy/") else set()
            assert missing <= own | BARE.get(name, set()), node["_target_"]


def test_J6_no_choice_is_named_by_digits():
    # Hydra would take workers=4 for a file: numbers are values, never files.
    assert not [name for name in FILES if Path(name).stem.isdigit()]
    assert compose("workers=4").workers == 4


def test_the_package_comment_is_the_first_line():
    # Hydra reads it nowhere else, and would put the keys below the group.
    names = [f for f in FILES if f.startswith(("experiment/", "strategy/"))]
    for name in (*names, "schedule/constant.yaml"):
        text = (CONF / name).read_text()
        assert text.startswith("# @package _global_\n"), name


# Tasks and models.

DENSE = ("logistic", "mlp", "mlp_128", "mlp_258k", "mlp_6_9m")
FITTING = {
    "digits": (*DENSE, "cnn"),
    "fashion_mnist": (*DENSE, "cnn"),
    "breast_cancer": DENSE,
    "synthetic": DENSE,
    "npz": DENSE,
    "csv": DENSE,
    "text": ("gpt",),
}
DEFAULTS = dict.fromkeys(("fashion_mnist", "npz", "csv"), "mlp_128")
DEFAULTS |= {"digits": "mlp", "synthetic": "mlp"}
DEFAULTS |= {"breast_cancer": "logistic", "text": "gpt"}


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Files of one's own, and images where there is no network."""
    rows = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    labels = np.arange(40) % 2
    np.savez(tmp_path / "own.npz", x=rows, y=labels)
    lines = [
        ",".join(map(str, [*row, label]))
        for row, label in zip(rows, labels, strict=True)
    ]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,c,d,e,label", *lines]))
    (tmp_path / "own.txt").write_text("to be or not to be " * 50)
    images = Split(np.zeros((20, 28, 28, 1), np.uint8), np.arange(20, dtype="i4") % 10)
    clothes = Dataset("fashion_mnist", images, images, 10, as_floats)
    monkeypatch.setattr("parsgd.data.load_fashion_mnist", lambda *, data_dir: clothes)
    files = {"npz": "own.npz", "csv": "own.csv", "text": "own.txt"}
    return {task: f"task.path={tmp_path / name}" for task, name in files.items()}


def test_every_task_and_model_are_among_the_combinations():
    assert {*FITTING} == {p.stem for p in (CONF / "task").glob("*.yaml")}
    models = {p.stem for p in (CONF / "task/model").glob("*.yaml")}
    assert {model for fitting in FITTING.values() for model in fitting} == models


@pytest.mark.parametrize("task", FITTING)
def test_a_chosen_model_replaces_the_tasks_own_whole(task, sources):
    path = [sources[task]] if task in sources else []
    for model in FITTING[task]:
        cfg = compose(f"task={task}", f"task/model={model}", *path, "worker_batch=2")
        file = yaml.safe_load((CONF / "task/model" / f"{model}.yaml").read_text())
        assert OmegaConf.to_container(cfg.task.model) == file
        jax.eval_shape(objects.build(cfg).task.init, jax.random.key(0))
        if model == DEFAULTS[task]:
            assert compose(f"task={task}", *path).task.model == cfg.task.model
    narrow = "width=8" if task == "text" else "features=[3]"
    if DEFAULTS[task] != "logistic":
        assert build(f"task={task}", f"task.model.{narrow}", *path, "worker_batch=2")


def test_J8_shipped_experiments_never_set_a_launcher():
    names = [f for f in FILES if f.startswith("experiment/")]
    assert names
    for name in names:
        text = (CONF / name).read_text()
        assert "launcher" not in text, name


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_composes_builds_and_trains_a_round(name):
    small = ("task.model.features=[4]", "placement=vmap", "worker_batch=4")
    made = build(f"strategy={name}", "workers=2", "local_steps=1", "samples=80", *small)
    made.arguments.update(evaluations=1, train_examples=8)
    run = parsgd.fit(made.task, made.strategy, **made.arguments)
    assert run.history[-1]["samples"] == 80


# Messages of each of the four arrays, for four workers.
@pytest.mark.parametrize(
    ("algorithm", "calls"),
    [
        ("native", {"all-reduce": 4}),
        ("ring", {"permute": 4 * (3 + 3)}),
        ("tree", {"permute": 4 * (2 + 2)}),
        ("hierarchical", {"permute": 4 * (2 * (2 - 1) + 2 * (4 / 2 - 1))}),
    ],
)
def test_the_algorithm_of_the_average_is_an_added_key(algorithm, calls):
    words = ["task.model.features=[4]", "placement=vmap", "worker_batch=4"]
    if algorithm != "native":
        words.append(f"+strategy.algorithm={algorithm}")
    if algorithm == "hierarchical":
        words.append("+strategy.group=2")
    made = build("strategy=sync_sgd", "workers=4", "samples=160", *words)
    made.arguments.update(evaluations=1, train_examples=8)
    run = parsgd.fit(made.task, made.strategy, **made.arguments)
    assert run.summary["calls_per_round"] == calls
    # The same average, whoever adds it up.
    reference = _natively_averaged()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        run.readout,
        reference,
    )


@functools.cache
def _natively_averaged():
    small = ("task.model.features=[4]", "placement=vmap", "worker_batch=4")
    made = build("strategy=sync_sgd", "workers=4", "samples=160", *small)
    made.arguments.update(evaluations=1, train_examples=8)
    return parsgd.fit(made.task, made.strategy, **made.arguments).readout


@pytest.mark.parametrize("group", ["optimizer", "schedule", "scaling", "placement"])
def test_every_other_choice_builds(group):
    for path in (CONF / group).glob("*.yaml"):
        optimizer = "adam" if path.stem == "adam_sqrt" else "sgd"
        made = build(f"optimizer={optimizer}", f"{group}={path.stem}", "workers=2")
        assert made.config["workers"] == 2


def chosen_by(*overrides):
    cfg = compose(*overrides, return_hydra_config=True)
    hydra = cfg.hydra
    with open_dict(cfg):
        del cfg["hydra"]
    return chosen(hydra, objects.as_stored(cfg))


def test_what_a_file_chose_is_known_unless_something_replaced_it(tmp_path):
    own = tmp_path / "experiment"
    own.mkdir()
    (own / "low.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /strategy: power_sgd\n"
        "  - override /task/model: logistic\n"
    )
    (own / "mine.yaml").write_text(
        "# @package _global_\nstrategy:\n  _target_: parsgd.local_sgd\n"
    )
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "own.yaml").write_text(
        "defaults:\n  - synthetic\n  - _self_\n"
        "_target_: parsgd.tasks.synthetic\nkind: clusters\n"
    )
    where = f"hydra.searchpath=[file://{tmp_path}]"
    usual = {"task": "digits", "task/model": "mlp", "optimizer": "sgd"}
    usual |= {"strategy": "sync_sgd", "scaling": "none", "schedule": "constant"}
    usual |= {"placement": "auto"}
    assert chosen_by() == usual
    assert chosen_by("+experiment=low", where) == usual | {
        "strategy": "power_sgd",
        "task/model": "logistic",
    }
    parts = {"strategy": "compressed", "compressor": "top_k", "feedback": "ef"}
    assert chosen_by("strategy=compressed", "compressor=top_k") == usual | parts
    # Which of its kinds a task is does not make it another.
    assert chosen_by("task=own", "task.kind=teacher", where)["task"] == "own"
    for replaced, words in (
        ("strategy", ("+experiment=mine", where)),
        ("strategy", ("strategy._target_=parsgd.single",)),
        ("placement", ("placement.kind=vmap",)),
        ("task/model", ("task.model._target_=my.model",)),
    ):
        assert chosen_by(*words) == {k: v for k, v in usual.items() if k != replaced}


def test_only_known_packages_and_those_the_user_names_are_called():
    node = {"_target_": "textwrap.indent", "text": "x", "prefix": ">"}
    with pytest.raises(UserError, match=r"textwrap\.indent is not called"):
        call(node, "task")
    assert call(node, "task", allowed=("textwrap",)) == ">x"
    with pytest.raises(UserError, match=r"task\.model\._target_"):
        call({"_target_": "parsgd.digits", "model": node}, "task")


def test_a_package_of_ones_own_gives_what_it_defines_and_not_what_it_imports(
    tmp_path, monkeypatch
):
    (tmp_path / "own_parts.py").write_text(
        "import functools, optax\nimport jax.numpy as jnp\nfrom optax import adam\n"
        "def sgd(learning_rate):\n    return optax.sgd(learning_rate)\n"
        "half = functools.partial(sgd, 0.5)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for inner in ("jnp.load", "functools.reduce", "jnp.__loader__.load_module"):
        node = {"_target_": f"own_parts.{inner}", "file": "evil.npy"}
        with pytest.raises(UserError, match=r"is not called: it is defined in"):
            call(node, "task.model", allowed=("own_parts",))
    for name, options in (("sgd", 0.1), ("adam", 0.1), ("half", None)):
        node = {"_target_": f"own_parts.{name}"}
        node |= {} if options is None else {"learning_rate": options}
        assert call(node, "optimizer", allowed=("own_parts",)).update


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
