"""The ways to start several processes as one run, each as its users start it."""

import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest
from processes import finished, free_address, parsgd, two_by_hand

SHORT = ("epochs=1", "evaluations=1")
TRAIN = ("train", *SHORT, "hydra.run.dir=run")


@functools.cache
def open_mpi():
    """The version of Open MPI's mpirun, 0 where there is none."""
    if not shutil.which("mpirun"):
        return 0
    said = subprocess.run(
        ["mpirun", "--version"], capture_output=True, text=True, timeout=10
    )
    found = re.search(r"Open MPI\) (\d+)", said.stdout)
    return int(found[1]) if found else 0


def check_processes(folder, count):
    (run,) = folder.iterdir()
    record = json.loads((run / "result.json").read_text())
    assert record["summary"]["placement"]["processes"] == count


@pytest.mark.slow
@pytest.mark.skipif(
    open_mpi() not in (3, 4),
    reason=f"JAX finds those of Open MPI 3 and 4, and mpirun is of {open_mpi()}",
)
def test_open_mpi_starts_the_processes(tmp_path):
    start = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4")
    run = subprocess.run(
        (*start, sys.executable, "-m", "parsgd.cli", *TRAIN, "workers=4"),
        cwd=tmp_path,
        env=os.environ | {"HWLOC_COMPONENTS": "-gl"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    check_processes(tmp_path, 4)


def slurm(process, where):
    """What srun sets for one of two tasks on this machine, as far as it is read."""
    return os.environ | {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": str(process),
        "SLURM_LOCALID": str(process),
        "JAX_COORDINATOR_PORT": where.rpartition(":")[2],
    }


@pytest.mark.slow
def test_processes_find_each_other_by_what_slurm_sets(tmp_path):
    where = free_address()
    words = (*TRAIN, "workers=2")
    both = [parsgd(*words, cwd=tmp_path, env=slurm(i, where)) for i in range(2)]
    ends = [finished(process) for process in both]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert "completed: " in ends[0][1] and "completed: " not in ends[1][1]
    check_processes(tmp_path, 2)


def test_I11_a_port_of_slurm_that_is_busy_can_be_changed(tmp_path):
    with socket.create_server(("", 0)) as busy:
        env = slurm(0, f"localhost:{busy.getsockname()[1]}")
        code, _, err = finished(parsgd("train", cwd=tmp_path, env=env))
    assert code == 2 and "JAX_COORDINATOR_PORT=PORT in all processes" in err, err
    assert "Traceback" not in err and not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores",
)
def test_processes_may_have_unlike_machines(tmp_path):
    """One has a core less, and so would have a device less."""
    where, both = free_address(), []
    usable = sorted(os.sched_getaffinity(0))
    words = ("train", *SHORT, "strategy=local_sgd", "workers=2", "hydra.run.dir=run")
    words += ("checkpoint.rounds=5", "cluster=manual", "cluster.processes=2")
    for process, cores in enumerate((usable[:2], usable[:1])):
        manual = (f"cluster.coordinator={where}", f"cluster.process={process}")
        os.sched_setaffinity(0, cores)  # it inherits this thread's
        both.append(parsgd(*words, *manual, cwd=tmp_path))
        os.sched_setaffinity(0, usable)
    ends = [finished(process) for process in both]
    assert [code for code, _, _ in ends] == [0, 0], ends


@pytest.mark.slow
def test_processes_with_unlike_devices_are_refused(tmp_path):
    where, both = free_address(), []
    words = ("train", *SHORT, "workers=2", "cluster=manual", "cluster.processes=2")
    for process in range(2):
        manual = (f"cluster.coordinator={where}", f"cluster.process={process}")
        env = os.environ | {"JAX_NUM_CPU_DEVICES": str(2 + process)}
        both.append(parsgd(*words, *manual, cwd=tmp_path, env=env))
    (code, _, err), _ = [finished(process) for process in both]
    assert code == 2 and "the processes have 2, 3 devices" in err, err


@pytest.mark.slow
def test_processes_of_two_machines_say_where_they_meet(tmp_path):
    ends = two_by_hand(tmp_path, *SHORT, "workers=2")
    (code, out, _), (other_code, other_out, _) = ends
    assert code == other_code == 0, ends
    assert "completed: " in out and "completed: " not in other_out
    check_processes(tmp_path, 2)
