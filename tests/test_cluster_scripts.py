"""Scripts of several processes that are unlike, late, or done before the others."""

import pytest
from processes import finished, parsgd

pytestmark = pytest.mark.slow

START = """
import sys, time, optax, parsgd
from parsgd import cluster

cluster.start(cluster.Settings(timeout=5))
me = cluster.process()

class Late(parsgd.Observer):
    def progress(self, step, steps, record):
        if me == 1 and record["round"] == 1:
            time.sleep(late)
"""
FIT = """
for strategy in strategies:
    run = parsgd.fit(
        parsgd.digits(), strategy, workers=2, worker_batch=4, rounds=4, observer=Late()
    )
    print("done", run.status, flush=True)
"""
LEAVE = """
if me == 0:
    time.sleep(7)  # as to plot what came of it
print("left", flush=True)
cluster.leave(0)
"""
# What all-reduces, gathers, and averages at the end of a round.
STRATEGIES = """
inner = optax.sgd(0.1)
strategies = parsgd.sync_sgd(inner), parsgd.one_bit_sgd(inner), parsgd.diloco(inner)
"""


def launched(tmp_path, script):
    file = tmp_path / "script.py"
    file.write_text(script)
    return finished(parsgd("launch", "--processes", "2", file, cwd=tmp_path))


def test_I12_one_that_is_late_is_waited_for(tmp_path):
    code, out, err = launched(tmp_path, START + "late = 3" + STRATEGIES + FIT + LEAVE)
    assert code == 0, err
    assert out.count("done completed") == 6 and out.count("left") == 2


def test_I12_one_that_is_too_late_is_named(tmp_path):
    code, out, err = launched(tmp_path, START + "late = 30" + STRATEGIES + FIT)
    assert code == 1 and "done" not in out
    assert "process 1 of 2 has not come to " in err
    assert "within cluster.timeout=5 s" in err


def test_a_fault_of_one_script_is_told_by_the_others(tmp_path):
    # By process 0 too, without which JAX would abort the others.
    fault = (
        "\nif me == number: raise RuntimeError('no room')\ncluster.exchange('x', '')"
    )
    for number in range(2):
        code, _, err = launched(tmp_path, START + f"number = {number}" + fault)
        assert code == 1 and err.count("Traceback") == 1, err
        assert f"process {number} of 2 failed: RuntimeError: no room" in err, err


def test_E6_scripts_with_other_rates_are_refused(tmp_path):
    given = "late = 0\nstrategies = [parsgd.sync_sgd(optax.sgd(0.1 * (1 + me)))]\n"
    code, _, err = launched(tmp_path, START + given + FIT)
    assert code != 0
    assert "the processes of this run were not started alike" in err
    assert "compiled program (round), by its checksum" in err


def test_a_backend_that_runs_already_is_told(tmp_path):
    code, _, err = launched(tmp_path, "import jax; jax.devices()\n" + START)
    assert code != 0
    assert "JAX has computed something already, and processes must join before" in err


def test_all_start_from_the_parameters_of_process_0(tmp_path):
    own = (
        "late = 0\ntask = parsgd.digits()\ninit = task.init\n"
        "def unlike(key):\n"
        "    params, state = init(key)\n"
        "    return jax.tree.map(lambda w: w + 0.01 * me, params), state\n"
        "task = task._replace(init=unlike)\n"
        "run = parsgd.fit(\n"
        "    task, parsgd.sync_sgd(optax.sgd(0.1)), workers=2, worker_batch=4,\n"
        "    rounds=4, check_replicas=True)\n"
        "print('sum', sum(float(x.sum()) for x in jax.tree.leaves(run.readout)))\n"
        "cluster.leave(0)\n"
    )
    code, out, err = launched(
        tmp_path, START.replace("import sys", "import jax, sys") + own
    )
    assert code == 0, err
    sums = {line.split()[-1] for line in out.splitlines() if "sum" in line}
    assert len(sums) == 1, out


def test_E6_other_data_are_refused(tmp_path):
    own = (
        "late = 0\ntask = parsgd.digits()\n"
        "train = task.data.train._replace(x=task.data.train.x + me)\n"
        "task = task._replace(data=task.data._replace(train=train))\n"
        "strategy = parsgd.sync_sgd(optax.sgd(0.1))\n"
        "parsgd.fit(task, strategy, workers=2, worker_batch=4, rounds=4)\n"
    )
    code, _, err = launched(tmp_path, START + own)
    assert code != 0 and "data_checksum: " in err
