# ruff: noqa: F811  (pytest finds imported fixtures by their name)
"""What a user gets wrong: one message that names it, exit code 2, and no traceback."""

import importlib
import logging
import pickle
import sys

import pytest
from command_line import command  # noqa: F401
from composed import build, compose
from hydra.errors import HydraException

from parsgd import UserError
from parsgd.config.messages import explain


@pytest.mark.parametrize(
    "overrides, expected",
    [
        (["+strategy.momentum_policy=keep"], "parsgd.sync_sgd has no such argument"),
        (
            ["strategy=local_sgd", "strategy.momentum_policy=foo"],
            "choose one of keep, average, reset",
        ),
        (["task.model._target_=parsgd.models.Foo"], "parsgd.models has no 'Foo'."),
        (["strategy._target_=parsgd.sync_sdg"], "Did you mean sync_sgd?"),
        (["strategy._target_=parsgd..x"], "cannot be found: give MODULE.FUNCTION"),
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
        (["strategy=bmfu"], "Choose one of adasum, block_momentum, "),
        (["strategy=block_momentm"], "Did you mean block_momentum?"),
        (["wokers=3"], "wokers: there is no key 'wokers'. Did you mean workers?"),
        (["optimizer.momentun=0.9"], "Did you mean momentum?"),
        (["workers=two"], "workers=two"),
        (["samples=1e4"], "samples=1e4: write whole numbers out: 10000"),
        (["samples=1.5"], "samples=1.5: give a whole number"),
        (["workers=1,2"], "`parsgd train -m` sweeps over them"),
        (["wokers=1,2"], "wokers: there is no key 'wokers'. Did you mean workers?"),
        (["stratgy=sync_sgd,local_sgd"], "Did you mean strategy?"),
        (["workers=2", "placement.devises=1,2"], "Did you mean devices?"),
        (["strategy=bmuf,local_sgd"], "Choose one of adasum, block_momentum, "),
        (
            ["strategy=[a,local_sgd]"],
            "strategy=a: there is no such strategy. Choose one",
        ),
        (["checkpoint=100"], "group of keys: give one or more of checkpoint.rounds"),
        (["checkpoint=null"], "checkpoint=null: it cannot be null: leave it out"),
        (["workers=[1,2]"], "workers=[1,2]: give a whole number"),
        (["epochs=ten"], "epochs=ten: give a number"),
        (["check_replicas=maybe"], "check_replicas=maybe: give true or false"),
        (["tail=[drop]"], "tail=[drop]: give a word"),
        (
            ["strategy=terngrad", "feedback=ef"],
            "as in strategy=compressed compressor=terngrad; to compare",
        ),
        (["+workers=3"], "leave out the +"),
        (["+experiment=nope"], "Choose one of compression, demo, fashion_mnist"),
        (["foo.bar=1"], "foo: there is no key 'foo'. There are check_replicas"),
        (
            ["~task/model", "task.model.features=[1]"],
            "task.model: there is no key 'model' in task, which is parsgd.tasks",
        ),
        (["~optimizer.momentum"], "either there is no such key, or it is null"),
        (["~frob"], "~frob: there is nothing to delete"),
        (["a b"], "cannot read the argument 'a b'"),
        (
            ["task.path=a(1).csv"],
            "needs quotes of its own beside the shell's: 'task.path=",
        ),
    ],
)
def test_J4_wrong_overrides_name_the_key_and_the_choices(overrides, expected):
    with pytest.raises(HydraException) as error:
        compose(*overrides)
    assert expected in explain(error.value, overrides)


# The command.

DEVICES = ("workers=3", "placement=shard_map", "placement.devices=2")
LINEAR, COSINE = "scaling=linear", "schedule=cosine"
SWITCH = "strategy=post_local_sgd"


class Code:
    def __reduce__(self):
        return open, ("ran", "w")


@pytest.mark.parametrize("flag", ["--experimental-rerun", "--exp"])
def test_a_config_is_not_read_from_a_pickle(command, tmp_path, flag):
    (tmp_path / "config.pickle").write_bytes(pickle.dumps(Code()))
    code, _, err = command("train", f"{flag}=config.pickle")
    assert code == 2 and "a pickle, which can run any code" in err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("-m", "--cfg", "job"), "leave out -m (--multirun)"),
        (DEVICES, "use workers=2 or 4, or placement.devices=1"),
        (["placement.devices=[1,1]"], "names each device once"),
        (["placement.devices=99"], "99 devices"),
        (["placement.devices=100000"], "1024 at most"),
        (["task=csv", "task.path=nowhere.csv"], "there is no file"),
        (["task=fashion_mnist", "task.data_dir=nowhere"], "data_dir=nowhere"),
        (["target_accuracy=1.5"], "target_accuracy=1.5"),
        (["target_accuracy=nan"], "target_accuracy=nan"),
        (
            ["worker_batch=4", "global_batch=8"],
            "worker_batch=null or global_batch=null",
        ),
        (["epochs=4", "samples=8"], "not meant, or set epochs=null or samples=null"),
        (["task.model=cnn"], "chosen with a slash, task/model=cnn"),
        (["tail=keep"], "choose 'drop' or 'weight'"),
        (["optimizer.learning_rate=nan"], "optimizer.learning_rate=nan"),
        (["optimizer.learning_rate=-0.1"], "as a number, 0 or more"),
        (["optimizer.learning_rate=abc"], "optimizer.learning_rate=abc"),
        (["optimizer.momentum=abc"], "optax.sgd takes a number"),
        (["optimizer.nesterov=abc"], "optax.sgd takes true or false"),
        (["schedule=step", "schedule.boundaries=abc"], "takes a list"),
        (["workers=0"], "workers=0: it must be at least 1"),
        (["workers=1.5"], "workers=1.5"),
        (["seed=-1"], "seed=-1"),
        (["seed=9223372036854775808"], "the largest is 4294967295"),
        (["strategy=bmfu"], "Choose one of"),
        (
            ["strategy=local_sgd", "strategy.momentum_polcy=keep"],
            "mean momentum_policy?",
        ),
        (["+foo=1"], "foo: there is no such key, nothing would read it"),
        (["+placement.foo=1"], "placement.foo: there is no such key"),
        (["~seed"], "seed has been deleted"),
        (["~optimizer"], "optimizer has no _target_"),
        (["train_examples=0"], "train_examples=0"),
        (["task.model.features=[0]"], "features=0"),
        (["schedule=null"], "schedule takes the name of a choice: constant, cosine"),
        (["=3"], "no key before the ="),
        ([LINEAR, "scaling.reference_batch=0"], "scaling.reference_batch=0"),
        ([LINEAR, "scaling.reference_batch=nan"], "scaling.reference_batch=nan"),
        ([LINEAR, "scaling.warmup_epochs=nan"], "scaling.warmup_epochs=nan"),
        ([COSINE, "schedule.decay_steps=0"], "schedule.decay_steps=0: must be 1"),
        (["schedule=linear", "schedule.transition_steps=0"], "transition_steps=0"),
        ([SWITCH, "strategy.switch_step=${foo}"], "switch_step: Interpolation key"),
        ([SWITCH, "strategy.switch_step=${steps:abc}"], "'abc'"),
        (["hydra.run.dir=a_file"], "choose another folder with hydra.run.dir=DIR"),
        (["hydra.run.dir=a_file/run"], "a_file/run cannot be written"),
        (["strategy.H=4"], "a size of the run, not of its strategy: local_steps=VALUE"),
        (["hydra/launcher=processes"], "this is one run: add -m, or leave it out"),
        (["--config-dir", "nowhere"], "--config-dir nowhere: there is no such folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_J4_train_says_what_is_wrong(command, tmp_path, arguments, expected):
    (tmp_path / "a_file").touch()
    code, out, err = command("train", *arguments)
    assert code == 2, err
    assert expected in err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    "mistake",
    ["workers=0", "placement.devices=99", "seed=x", "hydra/launcher=processes"],
)
def test_J4_a_run_that_was_refused_leaves_no_folder(command, tmp_path, mistake):
    assert command("train", mistake)[0] == 2
    assert not list(tmp_path.iterdir())


def test_J4_a_run_that_was_refused_touches_no_results(command, tmp_path):
    where = ("hydra.run.dir=run", "samples=64", "evaluations=1")
    assert command("train", *where)[0] == 0
    result = tmp_path / "run/result.json"
    before = result.read_bytes()
    assert command("train", "workers=0", *where)[0] == 2
    assert result.read_bytes() == before


@pytest.mark.parametrize(
    "source, expected",
    [
        (None, "there is no module 'my_part', neither in the current folder, {} nor"),
        ("import nowhere", "importing it fails, because there is no module 'nowhere'"),
        ("def", "SyntaxError: invalid syntax (my_part.py, line 1)"),
        ("", "my_part has no 'made'."),
    ],
)
def test_a_target_that_is_not_found_is_one_line(
    command, tmp_path, monkeypatch, source, expected
):
    monkeypatch.delitem(sys.modules, "my_part", raising=False)
    importlib.invalidate_caches()
    if source is not None:
        (tmp_path / "my_part.py").write_text(source)
    code, out, err = command("train", "strategy._target_=my_part.made")
    assert (code, out) == (2, "")
    assert expected.format(f"{tmp_path},") in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_key_that_one_of_two_strategies_lacks_names_that_one(command, dry):
    lists = ("strategy=block_momentum,local_sgd", "strategy.eta=0.1,0.5")
    code, _, err = command("train", *dry, "-m", *lists)
    assert code == 2
    assert "no key 'eta' in strategy, which is parsgd.local_sgd here" in err
    assert (
        "parsgd.local_sgd has momentum_policy. A sweep sets a key in all of its" in err
    )
    (_, _, alone) = command("train", "strategy=local_sgd", "strategy.eta=0.1")
    assert alone.rstrip().endswith("Nor does it take one that the config leaves out")
    (_, _, alone) = command("train", "strategy=local_sgd", "strategy.reducer=x")
    assert "leaves out takes a +: +strategy.reducer=..." in alone


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--frob"], "--frob: parsgd traffic has no such option"),
        (["-m", "workers=1,2"], "takes one configuration"),
        (["--cfg", "job"], "--cfg"),
        (["workers=1,2"], "`parsgd train -m` sweeps"),
        (["stray"], "cannot read the argument 'stray'"),
        (["~frob"], "~frob"),
        (["+frob=1"], "frob: there is no such key"),
        (["~optimizer"], "optimizer has no _target_"),
        (["--config-dir"], "--config-dir DIR"),
        (["--config-dir=nowhere"], "there is no such folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_traffic_ignores_nothing(command, arguments, expected):
    code, out, err = command("traffic", *arguments)
    assert (code, out) == (2, "")
    assert expected in err
    assert len(err.splitlines()) == 1


def test_traffic_honours_deletions(command):
    wide = ("traffic", "workers=2", "task.model.features=[7]")
    code, out, _ = command(*wide)
    assert code == 0
    assert "[64, 7]" in out
    # Without it the task has its own model.
    code, out, _ = command(*wide, "~task.model")
    assert code == 0
    assert "[64, 64]" in out


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--frob"], "no such option"),
        (["frob"], "no such group"),
        (["--config-dir", "nowhere"], "there is no such folder"),
        (["--config-dir=a", "--config-dir=b"], "given 2 times"),
    ],
)
def test_list_says_what_is_wrong(command, arguments, expected):
    code, out, err = command("list", *arguments)
    assert (code, out) == (2, "")
    assert expected in err


@pytest.mark.parametrize(
    "words, named",
    [
        (["strategy=sync_sgd", "+compressor=qsgd"], "compressor: this strategy has no"),
        (["strategy=one_bit_sgd", "+feedback.bucket=true"], "feedback: this strategy"),
        (["strategy=qsgd", "+feedback=ef"], "feedback: this strategy has no"),
    ],
)
def test_parts_that_nothing_uses_are_refused(words, named):
    with pytest.raises(UserError, match=named):
        build(*words, "workers=2")
    build("strategy=compressed", "compressor=top_k", "feedback=ef", "workers=2")


def test_a_missing_target_is_told_once(caplog):
    with pytest.raises(UserError, match="cannot be found: parsgd has no 'sync_sdg'"):
        build("strategy._target_=parsgd.sync_sdg")
    assert not caplog.records
    assert not logging.getLogger("hydra.utils").disabled


@pytest.mark.parametrize("strategy", ["zero_one_adam", "one_bit_sgd"])
@pytest.mark.parametrize("name", ["train", "traffic"])
def test_local_steps_that_are_not_followed_are_refused(command, name, strategy):
    code, _, err = command(name, f"strategy={strategy}", "local_steps=4", "workers=2")
    assert code == 2 and "local_steps=4: this strategy" in err


@pytest.mark.parametrize(
    "target",
    [
        "parsgd.cluster.supervise.supervise",
        "parsgd.data.fashion_mnist.os.system",
        "parsgd.cli.main",
        "flax.io.rmtree",
    ],
)
def test_a_config_cannot_call_what_makes_no_part_of_a_run(target):
    with pytest.raises(UserError, match="is not called"):
        build(f"strategy._target_={target}")
