"""Several processes as one run, started as users start them."""

import contextlib
import json
import socket
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import pytest
from jax._src import distributed, xla_bridge
from jax._src.clusters.k8s_cluster import K8sCluster
from jaxlib import _jax
from processes import finished, free_address, parsgd

from parsgd import cluster
from parsgd.cluster import group, join, rendezvous, service
from parsgd.cluster.alike import check_alike
from parsgd.cluster.rendezvous import Settings, in_environment
from parsgd.errors import UserError
from parsgd.placement import spmd
from parsgd.placement.devices import Placement

STORE = distributed.global_state


@pytest.mark.parametrize("name", ["get_distributed_runtime_service", "start_store"])
def test_a_jax_that_starts_the_store_by_itself_is_refused(monkeypatch, name):
    monkeypatch.setattr(service, "MAKER", name)
    before = getattr(_jax, name, None)
    with service.apart():  # as in a process that has none
        assert getattr(_jax, name).func is service.Service
    assert getattr(_jax, name, None) is before

    monkeypatch.setattr(STORE, "service", object())
    own = r"JAX \d.* in a way of its own"
    with pytest.raises(RuntimeError, match=own), service.apart():
        pass
    assert getattr(_jax, name, None) is before


STEP = {"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "n1"}
ORTE = "OMPI_MCA_orte_hnp_uri"
MANUAL = ("cluster=manual", "cluster.processes=2", "cluster.process=0")


@pytest.mark.parametrize(
    "environment, several",
    [
        ({}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, False),  # the batch script itself
        ({"SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "n1"}, False),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "n[1-2]"}, True),
        (STEP | {"SLURM_STEP_NUM_TASKS": "4"}, True),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1"}, False),  # the shell of salloc -n 4
        ({"OMPI_COMM_WORLD_SIZE": "1"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
        ({"KUBERNETES_SERVICE_HOST": "a", "JOB_COMPLETION_INDEX": "0"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"PARSGD_PROCESSES": "2"}, True),
        ({"PARSGD_PROCESSES": "1"}, False),
        ({"PARSGD_PROCESSES": "two"}, True),
        ({"PARSGD_COORDINATOR": "10.0.0.1:1234"}, True),
        ({"PARSGD_PROCESS": "1"}, True),
    ],
)
def test_I2_a_cluster_of_one_task_is_one_process(environment, several):
    assert in_environment(environment) is several


WHERE = {"PARSGD_COORDINATOR": "10.0.0.1:1234", "PARSGD_PROCESS": "0"}


@pytest.mark.parametrize(
    "environment, message",
    [
        (WHERE, "PARSGD_COORDINATOR is set without PARSGD_PROCESSES: set PARSGD_"),
        ({"PARSGD_PROCESS": "1"}, "PARSGD_PROCESS is set without PARSGD_COORD"),
        ({"PARSGD_PROCESSES": "2"}, "PARSGD_PROCESSES is set without PARSGD_COORD"),
        (WHERE | {"PARSGD_PROCESSES": "two"}, "PARSGD_PROCESSES=two: give a whole num"),
        (WHERE | {"PARSGD_PROCESSES": "0"}, "PARSGD_PROCESSES=0: give 1 or more"),
        (
            WHERE | {"PARSGD_PROCESSES": "2", "PARSGD_PROCESS": "-1"},
            "PARSGD_PROCESS=-1: give a whole number",
        ),
    ],
)
def test_I2_one_of_several_does_not_train_alone(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message):
        cluster.start(Settings())
    cluster.start(Settings("none"))


def test_I2_a_launch_of_one_process_is_one_process(monkeypatch):
    for name, value in (WHERE | {"PARSGD_PROCESSES": "1"}).items():
        monkeypatch.setenv(name, value)
    assert rendezvous.arguments(Settings()) is None


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
    monkeypatch.setenv(ORTE, "1.0;tcp://10.0.0.1:1")
    assert rendezvous.arguments(Settings()) == {}


def test_I2_open_mpi_5_which_jax_does_not_find_is_refused(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    what = r"Open MPI 5 .* cluster\.processes=4 cluster\.process=\$OMPI_COMM_WORLD_RANK"
    with pytest.raises(UserError, match=what):
        cluster.start(Settings())
    cluster.start(Settings("none"))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    cluster.start(Settings())


@pytest.fixture
def joining(monkeypatch):
    """How long the store is to stay, of a start that goes as far as JAX's own part."""
    stays = []

    @contextlib.contextmanager
    def apart(linger):
        stays.append(linger)
        yield

    monkeypatch.setattr(service, "apart", apart)
    monkeypatch.setattr(join, "_prepare", lambda: None)
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)
    return stays


@pytest.fixture
def pod(monkeypatch):
    """This process as a pod of an indexed Job, of which only JAX's reading is real."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")

    def of(job):
        client = MagicMock()
        client.exceptions.ApiException = RuntimeError
        package = SimpleNamespace(config=MagicMock(), client=client)
        monkeypatch.setitem(sys.modules, "kubernetes", package)
        monkeypatch.setattr(K8sCluster, "_job", job)

    return of


@pytest.mark.parametrize("count, arguments", [(1, None), (3, {})])
def test_I2_a_job_of_one_pod_is_one_process(pod, monkeypatch, count, arguments):
    pod(lambda: SimpleNamespace(spec=SimpleNamespace(parallelism=count)))
    assert rendezvous.arguments(Settings()) == arguments
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")  # of mpirun inside of a pod
    monkeypatch.setenv(ORTE, "1.0;tcp://10.0.0.1:1")
    assert rendezvous.arguments(Settings()) == {}


def test_a_pod_that_cannot_ask_for_the_others_says_what_to_do(pod, monkeypatch):
    def forbidden():
        raise RuntimeError("Kubernetes API Error: 403 - Forbidden\nIt appears")

    pod(forbidden)
    what = r"403 - Forbidden\): let its service account .* cluster=none"
    with pytest.raises(UserError, match=what):
        cluster.start(Settings())
    monkeypatch.setitem(sys.modules, "kubernetes", None)  # as where it is missing
    with pytest.raises(UserError, match=r"pip install kubernetes, or .* cluster=none"):
        cluster.start(Settings())
    cluster.start(Settings("none"))


@pytest.mark.parametrize(
    "services, remedy",
    [
        (
            (),
            "add a Service named jaxpods .* job-name: digits, and set subdomain: jaxp",
        ),
        (("pods",), r"\): set subdomain: pods in the Job's template\.spec; cluster=no"),
    ],
)
def test_a_job_without_a_subdomain_is_told_how_to_get_one(
    pod, monkeypatch, joining, services, remedy
):
    job = SimpleNamespace(
        metadata=SimpleNamespace(name="digits", labels={}),
        spec=SimpleNamespace(parallelism=2),
    )
    found = [SimpleNamespace(metadata=SimpleNamespace(name=name)) for name in services]
    spec = SimpleNamespace(spec=SimpleNamespace(subdomain=None))
    pod(lambda: job)
    monkeypatch.setattr(K8sCluster, "_pod", lambda: spec)
    monkeypatch.setattr(K8sCluster, "_controller", lambda: SimpleNamespace(kind="Job"))
    monkeypatch.setattr(K8sCluster, "_headless_svc", lambda: (found or [None])[0])
    with pytest.raises(UserError, match=f"need a headless service .*{remedy}"):
        cluster.start(Settings())
    assert joining == [60]


@pytest.mark.parametrize("timeout, seconds", [(1, 60), (60, 60), (600, 200)])
def test_the_store_outlives_process_0_until_its_silence_is_seen(
    monkeypatch, joining, timeout, seconds
):
    def initialize(**options):
        raise RuntimeError("no more of it")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(UserError, match=r"\(RuntimeError: no more of it\)"):
        cluster.start(Settings("manual", free_address(), 2, 0, timeout))
    assert joining == [seconds]


def test_the_store_lingers_as_long_as_it_is_told(monkeypatch):
    started, now, waited = [], [100.0], []
    popen = MagicMock()
    popen.stdout.readline.return_value = service.READY
    monkeypatch.setattr(
        service.subprocess, "Popen", lambda words, **_: started.append(words) or popen
    )
    with service.apart(linger=200):
        getattr(_jax, service.MAKER)("[::]:1234", 2, recoverable=True)
    assert json.loads(started[0][-1]) == ["[::]:1234", 2, 200, {"recoverable": True}]

    def sleep(seconds):
        now[0] += seconds
        waited.append(seconds)

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(service, "time", clock)
    monkeypatch.setattr(service, "_connected", lambda port: True)
    service._linger(1234, 200)
    assert sum(waited) == pytest.approx(200, abs=1)


def test_processes_share_cores_only_where_they_overlap(monkeypatch):
    machine = socket.gethostname()
    all_of_them = [[machine, [0, 1]], [machine, [2, 3]], [machine, [1, 2]]]
    all_of_them += [["another", [0, 1]], [machine, [0, 1, 2, 3]]]
    texts = [json.dumps(one) for one in all_of_them]
    monkeypatch.setattr(group, "_client", object)
    monkeypatch.setattr(group, "exchange", lambda name, text: texts)
    for own, count in (([0, 1], 3), ([3], 2), ([4], 0)):
        monkeypatch.setattr(group.cores, "usable", lambda own=own: own)
        assert group.sharing_cores() == count


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


def test_no_process_runs_a_program_before_all_have_compiled_it(monkeypatch):
    """gloo waits 30 s for those that compile for longer, as with a cold cache."""
    came = []
    compile_ = jax.stages.Lowered.compile

    def compiled(self):
        came.append("compiled")
        return compile_(self)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compiled)
    monkeypatch.setattr(cluster, "exchange", lambda *told: came.append(told))
    monkeypatch.setattr(spmd, "check_alike", lambda facts: came.append("alike"))
    args = (jnp.ones(2),)
    for processes in (1, 2):
        monkeypatch.setattr(Placement, "processes", processes)
        place = Placement("vmap", (jax.devices()[0],), 2)
        spmd.compiled(lambda x: x + 1, place, (False,), False, args, name="round")
    assert came == ["compiled", "alike", "compiled", ("compiled program", "round")]
