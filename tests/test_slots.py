"""Which GPUs there are, and how many jobs may run at once on them."""

import os
from types import SimpleNamespace

import pytest
from processes import finished, parsgd

from parsgd.cli import launchers, slots
from parsgd.cluster import gpus


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes one up, with these files of devices, this plugin of JAX, and variables."""

    def make(*devices, plugin="xla_cuda13", **variables):
        for name in (slots.GPUS, slots.ALL_GPUS, "JAX_PLATFORMS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for name in devices:
            (tmp_path / name).touch()
        monkeypatch.setattr(gpus, "DEVICES", tmp_path)
        plugins = [SimpleNamespace(name=plugin)] if plugin else []
        monkeypatch.setattr(slots, "entry_points", lambda group: plugins)

    return make


WRITTEN = ("config.yaml", "result.json")  # as a job begins, and ends
OTHERS = ("nvidiactl", "nvidia-uvm", "null")


def test_gpus_are_numbered_as_cuda_does(machine):
    machine("nvidia2", *OTHERS)  # a container that was given the third alone
    assert slots._gpus() == ["0"]
    machine("nvidia5", "nvidia10")
    assert slots._gpus() == ["0", "1", "2"]


@pytest.mark.parametrize(
    "listed, expected",
    [("3,1", ["3", "1"]), ("GPU-8a,0", ["GPU-8a", "0"]), ("", []), ("-1", [])],
)
def test_gpus_are_those_that_a_list_leaves(machine, listed, expected):
    machine("nvidia0", "nvidia1", CUDA_VISIBLE_DEVICES=listed)
    assert slots._gpus() == expected


def test_no_more_jobs_run_at_once_than_gpus(machine):
    machine("nvidia0", "nvidia1")
    assert [slots.at_once(count) for count in (1, 2, 5)] == [1, 2, 2]
    machine("nvidia0", "nvidia1", CUDA_VISIBLE_DEVICES="1")
    assert slots.at_once(5) == 1


@pytest.mark.parametrize(
    "facts",
    [
        {"CUDA_VISIBLE_DEVICES": ""},
        {"JAX_PLATFORMS": "cpu"},
        {"plugin": None},  # JAX for CPUs on a machine with GPUs
    ],
)
def test_jobs_that_use_no_gpus_are_as_many_as_asked_for(machine, facts):
    machine("nvidia0", **facts)
    assert slots.at_once(5) == 5


def launcher(name, **more):
    return SimpleNamespace(launcher=SimpleNamespace(_target_=f"a.{name}", **more))


def test_a_limit_is_told(machine, monkeypatch, capsys):
    monkeypatch.setattr("parsgd.cores.usable", lambda: [*range(8)])
    machine("nvidia0", "nvidia1")
    launchers.tell_limit(launcher("JoblibLauncher", n_jobs=2))
    launchers.tell_limit(launcher("LocalLauncher", cpus_per_task=4))
    launchers.tell_limit(launcher("BasicLauncher"))
    assert not capsys.readouterr().out
    told = "2 jobs at a time in place of 4, for 2 GPUs: each job has its own"
    launchers.tell_limit(launcher("JoblibLauncher", n_jobs=4))
    assert told in capsys.readouterr().out
    launchers.tell_limit(launcher("LocalLauncher", cpus_per_task=2))
    assert told in capsys.readouterr().out


def test_jobs_that_share_a_core_are_told_of(machine, monkeypatch, capsys):
    monkeypatch.setattr("parsgd.cores.usable", lambda: [4, 5])
    machine(JAX_PLATFORMS="cpu")
    launchers.tell_limit(launcher("JoblibLauncher", n_jobs=2))
    launchers.tell_limit(launcher("LocalLauncher", cpus_per_task=1))
    launchers.tell_limit(launcher("SlurmLauncher"))
    assert not capsys.readouterr().out
    launchers.tell_limit(launcher("JoblibLauncher", n_jobs=3))
    told = "3 jobs at a time for 2 cores: they share, so times of jobs cannot be"
    said = capsys.readouterr().out
    assert told in said and "n_jobs=2 gives each its own" in said
    monkeypatch.setattr("parsgd.cores.usable", lambda: [4])
    launchers.tell_limit(launcher("JoblibLauncher", n_jobs=2))
    assert "leave out hydra/launcher for one job" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["processes", "local"])
def test_jobs_wait_for_the_only_gpu(tmp_path, launcher):
    about = tmp_path / "plugins/jax_cuda_fake-1.dist-info"  # what makes JAX use CUDA
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Name: jax-cuda-fake\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[jax_plugins]\nxla_cuda = fake_cuda\n")
    (tmp_path / "plugins/fake_cuda.py").write_text("def initialize():\n    pass\n")
    paths = [str(tmp_path / "plugins"), os.environ.get("PYTHONPATH", "")]
    more = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), slots.GPUS: "7"}
    short = ("epochs=1", "evaluations=1", "hydra.sweep.dir=sweep")
    words = ("train", "-m", f"hydra/launcher={launcher}", "workers=1,2", *short)
    environment = {k: x for k, x in os.environ.items() if k != slots.ALL_GPUS}
    sweep = parsgd(*words, cwd=tmp_path, env=environment | more)
    code, out, err = finished(sweep)
    assert code == 0, err
    if launcher == "processes" or len(os.sched_getaffinity(0)) > 1:
        assert "1 job at a time in place of" in out and "for 1 GPU:" in out
    assert len([*(tmp_path / "sweep/.slots").iterdir()]) == 1
    folders = [tmp_path / "sweep" / job for job in "01"]
    times = [[(f / name).stat().st_mtime for name in WRITTEN] for f in folders]
    (_, end), (begin, _) = sorted(times)
    assert end <= begin
