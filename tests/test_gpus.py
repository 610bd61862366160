"""Which GPUs a process takes, by its environment alone."""

import pytest

from parsgd.cluster import gpus

EIGHT = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
TWO = {"CUDA_VISIBLE_DEVICES": "2,3"}
ONE = {"CUDA_VISIBLE_DEVICES": "0"}


def slurm(number, tasks, node=0, **more):
    return {
        "SLURM_LOCALID": str(number),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_NODEID": str(node),
    } | more


def open_mpi(number, count):
    return {
        "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(number),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(count),
    }


@pytest.mark.parametrize(
    "environment, own",
    [
        (slurm(7, "8") | EIGHT, [7]),  # --ntasks-per-node=8 --gpus-per-node=8
        (slurm(0, "1") | EIGHT, [*range(8)]),  # --ntasks-per-node=1 --gpus-per-node=8
        (slurm(1, "2") | EIGHT, [4, 5, 6, 7]),  # --ntasks-per-node=2
        (slurm(1, "3") | EIGHT, [2, 3]),
        (slurm(3, "4", SLURM_GPUS_PER_TASK="1") | ONE, [0]),  # --gpus-per-task=1
        (slurm(3, "4") | ONE, [0]),  # --gpu-bind=single:1
        (slurm(1, "2", SLURM_GPUS_PER_TASK="2") | TWO, [0, 1]),  # --gpus-per-task=2
        (slurm(3, "4", SLURM_GPUS_PER_TASK="h100:2") | TWO, [0, 1]),
        # --gpus-per-task=1 --gpu-bind=none
        (slurm(1, "2", SLURM_GPUS_PER_TASK="1") | TWO, [1]),
        (
            slurm(0, "8(x2),1", node=2) | EIGHT,
            [*range(8)],
        ),  # the last of three machines
        (slurm(1, "8(x2),1", node=1) | EIGHT, [1]),
        (open_mpi(1, 2) | EIGHT, [4, 5, 6, 7]),
        # Slurm's numbers are those of the batch script in which mpirun stands.
        (slurm(0, "1", SLURM_GPUS_PER_TASK="2") | open_mpi(1, 2) | TWO, [1]),
    ],
)
def test_I1_a_process_takes_the_gpus_that_are_its_own(environment, own):
    assert gpus.arguments(environment) == {"local_device_ids": own}


@pytest.mark.parametrize(
    "environment",
    [
        EIGHT,  # parsgd launch, cluster=manual, Kubernetes: what it sees
        slurm(1, "2", CUDA_VISIBLE_DEVICES=""),
        slurm(1, "2", CUDA_VISIBLE_DEVICES="-1"),
        slurm(1, "2", JAX_LOCAL_DEVICE_IDS="0") | EIGHT,
        slurm(3, "4") | TWO,  # bound, or too few: not to be told apart
        slurm(3, "") | TWO,
        slurm(3, "4", node=7) | TWO,
        slurm(0, "4", SLURM_GPUS_PER_TASK="many") | EIGHT,
    ],
)
def test_where_it_cannot_be_told_jax_decides(environment):
    assert gpus.arguments(environment) == {}


def test_gpus_without_a_list_have_the_numbers_of_cuda(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    assert gpus.visible({}) == []
    for name in ("nvidia3", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus.visible({}) == ["0", "1"]
    assert gpus.visible({"CUDA_VISIBLE_DEVICES": "GPU-a, MIG-b,-1,2"}) == [
        "GPU-a",
        "MIG-b",
    ]


@pytest.mark.parametrize(
    "shown, processes, shares",
    [
        ("0,1,2,3", 2, ["0,1", "2,3"]),
        ("4,5,6", 2, ["4", "5"]),  # as many for each
        ("0", 2, [None, None]),
        ("", 2, [None, None]),
    ],
)
def test_I1_launch_deals_out_the_gpus(shown, processes, shares):
    dealt = gpus.dealt({"CUDA_VISIBLE_DEVICES": shown}, processes)
    assert [own.get("CUDA_VISIBLE_DEVICES") for own in dealt] == shares


def test_one_gpu_of_the_machine_is_not_that_of_two_processes(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    (tmp_path / "nvidia0").touch()
    both = slurm(1, "2")
    both.pop("CUDA_VISIBLE_DEVICES", None)
    assert gpus.arguments(both) == {}
    assert gpus.arguments(both | ONE) == {"local_device_ids": [0]}
