"""Several processes as one run, started as users start them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from damage import other_numbers, part_of_process_1
from processes import finished, free_address, parsgd, two_by_hand

from parsgd import cluster
from parsgd.cluster import rendezvous
from parsgd.cluster.alike import check_alike
from parsgd.cluster.rendezvous import Settings, in_environment
from parsgd.errors import UserError

HERE = Path(__file__).parent
# Each kind of collective, a phase that changes, lanes that differ within a round.
ALGORITHMS = (
    "sync_sgd",
    "sync_sgd ring",
    "local_sgd average",
    "post_local_sgd",
    "block_momentum",
    "diloco",
    "one_bit_sgd",
    "top_k",
    "sign_sgd_majority",
    "power_sgd",
    "dgc",
    "demo",
    "one-bit adam",
    "one_bit two-sided",
)
MANUAL = ("cluster=manual", "cluster.processes=2", "cluster.process=0")
SHORT = ("workers=2", "epochs=1", "evaluations=1")


@pytest.mark.parametrize(
    "environment, several",
    [
        ({}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, False),  # the batch script itself
        ({"SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "n1"}, False),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "n[1-2]"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
        ({"KUBERNETES_SERVICE_HOST": "a", "JOB_COMPLETION_INDEX": "0"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"PARSGD_PROCESSES": "2"}, True),
    ],
)
def test_I2_a_cluster_of_one_task_is_one_process(environment, several):
    assert in_environment(environment) is several


@pytest.mark.parametrize(
    "settings, message",
    [
        (Settings("mpi"), "cluster=mpi: choose one of auto, none, manual"),
        (Settings("manual", "a:1", 2), "needs cluster.process"),
        (
            Settings("manual", "a", 2, 0),
            "cluster.coordinator=a: give host:port",
        ),
        (Settings("manual", "a:1", 2, 2), "numbered from 0 to 1"),
        (Settings("none", "a:1"), "cluster.coordinator=a:1 is for cluster=man"),
        (Settings(timeout=0), "cluster.timeout=0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        cluster.start(settings)


def test_options_that_differ_between_processes_are_listed(monkeypatch):
    def exchange(name, text):
        del name
        other = json.loads(text) | {"strategy.rank": 4, "only": None}
        return [text, json.dumps(other, sort_keys=True)]

    monkeypatch.setattr(cluster, "exchange", exchange)
    options = {"strategy": {"rank": 2}, "placement": {"devices": [0], "kind": "auto"}}
    with pytest.raises(UserError) as caught:
        check_alike(options, own=("placement.devices",))
    assert str(caught.value).splitlines()[1:3] == [
        "  only: absent in process 0, None in process 1",
        "  strategy.rank: 2 in process 0, 4 in process 1",
    ]


def test_I2_a_launcher_that_jax_does_not_know_is_refused(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(UserError, match=r"PMI_SIZE=4: .* cluster\.processes=4"):
        cluster.start(Settings())
    cluster.start(Settings("none"))
    monkeypatch.setenv("PMI_SIZE", "1")
    cluster.start(Settings())
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert rendezvous.arguments(Settings()) == {}


def test_I11_a_busy_port_is_named(tmp_path):
    with socket.create_server(("", 0)) as busy:
        where = f"cluster.coordinator=127.0.0.1:{busy.getsockname()[1]}"
        code, _, err = finished(parsgd("train", *MANUAL, where, cwd=tmp_path))
    assert code == 2 and where in err and "another program has it" in err
    assert "Traceback" not in err and not list(tmp_path.iterdir())


def test_processes_that_do_not_come_are_told(tmp_path):
    where = f"cluster.coordinator={free_address()}"
    words = ("train", *MANUAL, where, "cluster.timeout=2")
    code, _, err = finished(parsgd(*words, cwd=tmp_path))
    assert code == 2 and "did not find each other within cluster.timeout=2 s" in err


def test_manual_without_its_keys_and_sweeps_of_it_are_refused(tmp_path):
    code, _, err = finished(parsgd("train", "cluster=manual", cwd=tmp_path))
    assert code == 2 and "cluster=manual needs cluster.coordinator" in err
    words = ("train", "-m", "cluster.timeout=1,2")
    code, _, err = finished(parsgd(*words, cwd=tmp_path))
    assert code == 2 and "cannot be swept" in err


@pytest.mark.slow
def test_I10_other_numbers_of_processes_give_the_same_trajectories(tmp_path):
    ends = []
    for processes, devices in ((1, 4), (2, 2), (4, 1)):
        file = tmp_path / f"{processes}.npz"
        script = (HERE / "one_of_several.py", file, devices, *ALGORITHMS)
        words = ("launch", "--processes", processes, *script)
        code, _, err = finished(parsgd(*map(str, words)), 900)
        assert code == 0, err
        ends.append(np.load(file))
    for other in ends[1:]:
        assert set(other.files) == set(ends[0].files)
        for name in other.files:
            np.testing.assert_allclose(
                ends[0][name], other[name], rtol=2e-5, atol=2e-6, err_msg=name
            )


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI's mpirun")
def test_open_mpi_starts_the_processes(tmp_path):
    start = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2")
    command = (*start, sys.executable, "-m", "parsgd.cli", "train", *SHORT)
    run = subprocess.run(
        (*command, "hydra.run.dir=run"),
        cwd=tmp_path,
        env=os.environ | {"HWLOC_COMPONENTS": "-gl"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    record = json.loads((tmp_path / "run/result.json").read_text())
    assert record["summary"]["placement"]["processes"] == 2


@pytest.mark.slow
def test_processes_of_two_machines_say_where_they_meet(tmp_path):
    (code, out, _), (other_code, other_out, _) = two_by_hand(tmp_path, *SHORT)
    assert code == other_code == 0
    assert "completed: " in out and "completed: " not in other_out
    record = json.loads((tmp_path / "run/result.json").read_text())
    assert record["summary"]["placement"]["processes"] == 2


@pytest.mark.slow
def test_E6_other_options_in_one_process_are_refused(tmp_path):
    ends = two_by_hand(
        tmp_path, *SHORT, "worker_batch=2", other=("worker_batch=4", "seed=1")
    )
    assert ends[0][0] == 2  # process 0 speaks for all
    assert "worker_batch: 2 in process 0, 4 in process 1" in ends[0][2]
    assert "seed: absent in process 0, 1 in process 1" in ends[0][2]


@pytest.mark.slow
def test_G6_H9_two_processes_killed_at_any_moment_end_as_if_they_had_not(tmp_path):
    words = ("--processes", "2", "--kills", "2", "--samples", "3000")
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.kill_test", *words, "--only", "one_bit_sgd"],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0 and "equal" in run.stdout, run.stdout + run.stderr


@pytest.mark.slow
def test_J9_K2_a_sweep_of_two_processes_leaves_one_set_of_files(tmp_path):
    words = ("train", "-m", *SHORT[1:], "workers=2,3", "hydra.sweep.dir=s")
    code, out, err = finished(
        parsgd("launch", "--processes", "2", *words, cwd=tmp_path)
    )
    assert code == 1, err
    assert out.count("2 jobs in s") == 1
    jobs = {p.name for p in (tmp_path / "s").iterdir() if p.name.isdigit()}
    assert jobs == {"0", "1"}  # a folder of each job, not of each process
    reason = "3 workers cannot be spread evenly over 2 processes: use workers=2 or 4"
    assert out.count("#1 ") == 1 and reason in out
    lines = (tmp_path / "s/0/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 22]
    record = json.loads((tmp_path / "s/0/result.json").read_text())
    assert record["summary"]["placement"]["processes"] == 2
    assert json.loads((tmp_path / "s/1/result.json").read_text())["status"] == "failed"


@pytest.mark.slow
def test_H1_parts_of_several_processes_have_checksums(tmp_path):
    words = ("strategy=local_sgd", "local_steps=2", "optimizer=momentum", "workers=4")
    words += ("epochs=1", "evaluations=1", "checkpoint.rounds=2", "hydra.run.dir=run")
    launch = ("launch", "--processes", "2", "train", *words)
    code, _, err = finished(parsgd(*launch, cwd=tmp_path))
    assert code == 0, err
    where = tmp_path / "run/checkpoints"
    steps = (p for p in where.iterdir() if p.name.isdigit())
    newest = max(steps, key=lambda p: int(p.name))
    meta = json.loads((newest / "meta/metadata").read_text())
    spread = [name for name, (_, _, shared, _) in meta["leaves"].items() if not shared]
    assert spread and {*meta["crc32"]} >= {*spread}
    assert all([*meta["crc32"][name]] == ["0", "1", "2", "3"] for name in spread)
    # Of worker 3, which process 1 has.
    damages = {other_numbers: "its checksum differs", part_of_process_1: "Exception: "}
    for damage, processes, workers in (
        (part_of_process_1, "2", "4"),
        (other_numbers, "2", "4"),
        (other_numbers, "1", "2"),
    ):
        resume = ("train", "resume=run", "epochs=2", f"workers={workers}")
        launch = ("launch", "--processes", processes, *resume)
        copy = tmp_path / f"{damage.__name__}-{processes}"
        shutil.copytree(tmp_path / "run", copy / "run")
        damage(copy / "run/checkpoints" / newest.name)
        code, out, err = finished(parsgd(*launch, cwd=copy))
        assert code == 0, err
        assert f"checkpoint of step {newest.name} cannot be read" in out, out
        assert damages[damage] in out, out


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_G6_a_process_that_dies_or_stops_ends_the_others_by_name(tmp_path, number):
    where = free_address()
    both = []
    for process in range(2):
        environment = {"PARSGD_COORDINATOR": where, "PARSGD_PROCESSES": "2"}
        environment["PARSGD_PROCESS"] = str(process)
        words = ("train", "workers=2", "epochs=100000", "hydra.run.dir=run")
        both.append(parsgd(*words, cwd=tmp_path, env=os.environ | environment))
    try:
        deadline = time.monotonic() + 120
        metrics = tmp_path / "run/metrics.jsonl"
        while not (metrics.is_file() and metrics.read_text()):
            assert time.monotonic() < deadline and both[0].poll() is None
            time.sleep(0.2)
        time.sleep(3)
        both[1].send_signal(number)
        code, _, err = finished(both[0], 60)
        assert code == 1 and "process 1 of 2 is gone: no sign of life" in err
        assert "Process 0 stops" in err
    finally:
        for process in both:
            process.kill()
            process.communicate()
