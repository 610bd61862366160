"""Jobs in processes of their own, started by Hydra's launchers, and a search."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir

from parsgd import cluster, cores
from parsgd.cli import launchers, slots
from parsgd.config.choices import conf_dir
from parsgd.errors import UserError

SHORT = ("epochs=1", "evaluations=1")


def sweep(folder, *words):
    command = [sys.executable, "-m", "parsgd.cli", "train", "-m", *SHORT, *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300
    )


def results(folder):
    """Of the jobs of the only sweep, in order."""
    (sweep,) = folder.glob("multirun/*/*")
    jobs = sorted(sweep.glob("*/result.json"), key=lambda file: int(file.parent.name))
    return sweep, [json.loads(file.read_text()) for file in jobs]


@pytest.mark.slow
def test_J1_J2_each_job_has_its_process_and_its_devices(tmp_path):
    words = ("workers=4", "placement=shard_map", "placement.devices=1,2,5,4")
    done = sweep(tmp_path, "hydra/launcher=processes", *words)
    assert done.returncode == 1, done.stderr  # 4 workers do not fit 5 devices
    assert "4 workers cannot be spread evenly over 5 devices" in done.stdout
    folder, found = results(tmp_path)
    failed = found.pop(2)
    assert failed["status"] == "failed"
    assert [job["status"] for job in found] == 3 * ["completed"]
    devices = [job["summary"]["placement"]["devices"] for job in found]
    assert devices == [1, 2, 4]
    for job, own in zip(found, devices, strict=True):  # and sees no other job's
        machine = job["machine"]
        assert len(machine["devices"]) == max(own, machine["cores"])
    for job in found:  # what each process used, not their sum
        assert 0 < job["summary"]["train_seconds"] < 300
        assert 1e7 < job["summary"]["peak_memory_bytes"] < 16e9
    assert len([*(folder / ".slots").iterdir()]) == 2


@pytest.mark.slow
def test_submitit_runs_jobs_on_this_machine(tmp_path):
    # More jobs than cores: they wait for each other's share.
    workers = [1, 2, 4, 8][: len(cores.usable()) + 1]
    done = sweep(
        tmp_path, "hydra/launcher=local", f"workers={','.join(map(str, workers))}"
    )
    assert done.returncode == 0, done.stderr
    folder, found = results(tmp_path)
    assert [job["config"]["workers"] for job in found] == workers
    assert f"{len(workers)} of {len(workers)} jobs completed" in done.stdout
    shares = len([*(folder / ".slots").iterdir()])
    assert 1 <= shares <= min(len(workers), len(cores.usable()))


def test_a_dry_run_of_a_search_runs_nothing(tmp_path):
    done = sweep(tmp_path, "hydra/sweeper=search", "--dry-run", "workers=choice(1,2)")
    assert done.returncode == 0 and "none to list" in done.stdout
    assert not [*tmp_path.rglob("result.json")]


@pytest.mark.slow
def test_a_search_maximises_the_accuracy(tmp_path):
    rates = "optimizer.learning_rate=choice(0.0001,0.2)"
    done = sweep(tmp_path, "hydra/sweeper=search", "hydra.sweeper.n_trials=3", rates)
    assert done.returncode == 0, done.stderr
    folder, found = results(tmp_path)
    best = max(found, key=lambda job: job["best"]["test_accuracy"])
    chosen = (folder / "optimization_results.yaml").read_text()
    assert f"learning_rate: {best['config']['optimizer']['learning_rate']}" in chosen
    assert f"best_value: {best['best']['test_accuracy']}"[:20] in chosen


@pytest.mark.skipif(
    importlib.util.find_spec("hydra_plugins.hydra_ray_launcher") is not None,
    reason="Ray's launcher is installed",
)
def test_a_plugin_that_is_not_installed_is_named(tmp_path):
    done = sweep(tmp_path, "hydra/launcher=ray_cluster", "workers=1,2")
    assert done.returncode == 2 and "pip install 'parsgd[ray]'" in done.stderr


def hydra(name, **more):
    return SimpleNamespace(launcher=SimpleNamespace(_target_=f"a.{name}", **more))


def test_launchers_that_cannot_be_are_refused(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv(slots.ALL_GPUS, "")  # what is set here is undone at the end
    with pytest.raises(UserError, match="there is no srun here"):
        launchers.check(hydra("SlurmLauncher"))
    with pytest.raises(UserError, match="n_jobs=1"):
        launchers.check(hydra("JoblibLauncher", n_jobs=1))
    with pytest.raises(UserError, match="tasks_per_node=2: each of the tasks"):
        launchers.check(hydra("LocalLauncher", nodes=1, tasks_per_node=2))
    with pytest.raises(UserError, match=r"timeout_min=0: give a whole number"):
        launchers.check(hydra("LocalLauncher", timeout_min=0))
    monkeypatch.setattr("joblib.effective_n_jobs", lambda n: max(n, 3 + n, 1))
    with pytest.raises(UserError, match="n_jobs=0: joblib would run no job"):
        launchers.check(hydra("JoblibLauncher", n_jobs=0))
    with pytest.raises(UserError, match="n_jobs=-5 is one at a time"):
        launchers.check(hydra("JoblibLauncher", n_jobs=-5))
    launchers.check(hydra("JoblibLauncher", n_jobs=-1))
    launchers.check(hydra("JoblibLauncher", n_jobs=2))
    with pytest.raises(UserError, match=r"timeout=9 would do nothing: .* n_jobs alone"):
        launchers.check(hydra("JoblibLauncher", n_jobs=2, timeout=9))
    monkeypatch.setattr(cluster, "processes", lambda: 2)
    launchers.check(hydra("BasicLauncher"))
    with pytest.raises(UserError, match="runs in 2 processes already"):
        launchers.check(hydra("SlurmLauncher"))


@pytest.mark.parametrize(
    "setting, said",
    [
        ("mem_gb=4", "hydra.launcher.mem_gb=4 would do nothing: jobs on this machine"),
        ("name=mine", "hydra.launcher.name=mine would do nothing"),
        ("gpus_per_node=1", "gpus_per_node=1 would do nothing"),
        ("cpus_per_task=-1", "cpus_per_task=-1: give a whole number, 1 or more"),
        ("cpus_per_task=0", "cpus_per_task=0: give a whole number, 1 or more"),
        ("cpus_per_task=9999", "so no job could have as many; give"),
        ("cpus_per_task=1", None),
        ("submitit_folder=here", None),
        ("stderr_to_stdout=true", None),
    ],
)
def test_settings_of_local_jobs_that_cannot_be_are_refused(monkeypatch, setting, said):
    monkeypatch.setenv(slots.ALL_GPUS, "")
    monkeypatch.setattr("signal.signal", lambda *words: None)
    monkeypatch.setattr("parsgd.cli.local_jobs.install", lambda: None)
    words = ["hydra/launcher=local", f"hydra.launcher.{setting}"]
    with initialize_config_dir(str(conf_dir()), version_base=None):
        found = compose("config", words, return_hydra_config=True).hydra
    if said is None:
        launchers.check(found)
        return
    with pytest.raises(UserError, match=re.escape(said)):
        launchers.check(found)


def test_gpus_are_those_that_the_sweep_had(monkeypatch):
    for variable in (slots.GPUS, slots.ALL_GPUS):  # undone at the end
        monkeypatch.setenv(variable, "2,5")
    slots.remember_gpus()
    monkeypatch.setenv(slots.GPUS, "")  # as submitit sets it for a job
    assert slots._gpus() == ["2", "5"]


SHARES = """
import os, sys
from pathlib import Path
from parsgd.cli import slots
from parsgd.errors import UserError
try:
    slot = slots.share(Path("slots"), 2)
    again = slots.share(Path("slots"), 2)
except UserError as error:
    print(error, flush=True)
    sys.exit()
cores = sorted(os.sched_getaffinity(0))
print(slot == again, slot, cores, os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs affinity")
def test_shares_of_cores_and_accelerators_pass_on(tmp_path):
    usable = sorted(os.sched_getaffinity(0))
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    environment.pop(slots.ALL_GPUS, None)  # of a sweep in this process

    def start():
        return subprocess.Popen(
            [sys.executable, "-c", SHARES],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def told(process):
        return process.stdout.readline().strip()

    running = [start()]
    assert told(running[0]) == f"True 0 {slots.part(usable, 0, 2)} 4"
    running.append(start())
    assert told(running[1]) == f"True 1 {slots.part(usable, 1, 2)} 5"
    running.append(start())
    owners = f"{running[0].pid}, {running[1].pid}"
    assert f"all 2 shares of this machine are in use, by processes {owners}" in told(
        running[2]
    )
    running[0].communicate("")  # it ends, and its share is free
    running.append(start())
    assert told(running[3]).startswith("True 0 ")
    for process in running[1:]:
        process.communicate("")


@pytest.mark.parametrize(
    "things, count, expected",
    [
        (2, 3, [[0], [1], [0]]),
        (4, 3, [[0], [1], [2]]),  # one is idle
        (8, 3, [[0, 3], [1, 4], [2, 5]]),
        (4, 2, [[0, 2], [1, 3]]),
        (4, 1, [[0, 1, 2, 3]]),
        (0, 2, [[], []]),
    ],
)
def test_shares_are_equal(things, count, expected):
    shares = [slots.part([*range(things)], slot, count) for slot in range(count)]
    assert shares == expected


def test_a_process_that_was_killed_between_jobs_is_replaced(monkeypatch):
    from parsgd.cli import process_jobs

    launcher = process_jobs.ProcessJobs(n_jobs=2)
    launcher.hydra_context = launcher.config = launcher.task_function = None
    monkeypatch.setattr(process_jobs, "execute_job", print)
    dead = process_jobs._pool()
    victim = dead.submit(os.getpid).result()
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(process_jobs.TerminatedWorkerError):
        while True:
            dead.submit(time.sleep, 0.1).result()
    launcher._idle.append(("", dead))
    future, pool = launcher._start(0, [], "")
    try:
        assert future.result() is None and pool is not dead
    finally:
        pool.shutdown(kill_workers=True)
