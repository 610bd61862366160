"""Runs of several processes: they equal those of one, and end when one of them does."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import ledger
import numpy as np
import psutil
import pytest
from damage import other_numbers, part_of_process_1
from one_of_several import FIXED, IN_TURN, LEDGER
from processes import finished, free_address, parsgd, two_by_hand
from safetensors.numpy import load_file
from zoo import MORE_ROWS, ZOO

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
# Each kind of collective, a phase that changes, lanes that differ within a round; the
# other algorithms are compared between one process and two.
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
    "sync_sgd" + FIXED,
    "local_sgd average" + FIXED,
    "local_sgd" + IN_TURN,
)
OTHERS = sorted({*ZOO, *MORE_ROWS} - {*ALGORITHMS})
SHORT = ("workers=2", "epochs=1", "evaluations=1")


def test_I10_other_numbers_of_processes_give_the_same_trajectories(tmp_path):
    ends = []
    for processes, devices in ((1, 4), (2, 2), (4, 1)):
        file = tmp_path / f"{processes}.npz"
        names = (*ALGORITHMS, *OTHERS) if processes < 4 else ALGORITHMS
        script = (HERE / "one_of_several.py", file, devices, *names)
        words = ("launch", "--processes", processes, *script)
        code, _, err = finished(parsgd(*map(str, words)), 900)
        assert code == 0, err
        ends.append(np.load(file))
    assert {*ends[0].files} == {*ends[1].files} > {*ends[2].files}
    for other in ends[1:]:
        for name in other.files:
            np.testing.assert_allclose(
                ends[0][name], other[name], rtol=2e-5, atol=2e-6, err_msg=name
            )


def test_E2_two_processes_use_the_examples_of_the_order(tmp_path):
    script = (HERE / "one_of_several.py", tmp_path / "used.npz", 2, LEDGER)
    code, _, err = finished(parsgd("launch", "--processes", 2, *script))
    assert code == 0, err
    (used,) = np.load(tmp_path / "used.npz").values()
    np.testing.assert_array_equal(used, ledger.ordered())


def test_what_one_process_alone_gets_wrong_before_it_joins_is_said(tmp_path):
    run = tmp_path / "one.py"
    run.write_text(
        "import os, sys\n"
        "from parsgd.cli import main\n"
        "more = ['cluster=nothing'] if os.environ['PARSGD_PROCESS'] == '1' else []\n"
        f"sys.exit(main(['train', *{SHORT}, *more]))\n"
    )
    launch = ("launch", "--processes", "2", "--grace", "1", run)
    code, _, err = finished(parsgd(*launch, cwd=tmp_path))
    assert code and "[1] parsgd: " in err and "cluster=nothing" in err, err


@pytest.mark.parametrize("where", ["init", "metrics"])
def test_who_compiles_for_long_is_waited_for(where):
    code, _, err = finished(parsgd("launch", "--processes", 2, HERE / "late.py", where))
    assert code == 0, err


def test_E6_other_options_in_one_process_are_refused(tmp_path):
    ends = two_by_hand(
        tmp_path, *SHORT, "worker_batch=2", other=("worker_batch=4", "seed=1")
    )
    assert ends[0][0] == 2  # process 0 speaks for all
    assert "worker_batch: 2 in process 0, 4 in process 1" in ends[0][2]
    assert "seed: absent in process 0, 1 in process 1" in ends[0][2]


def test_checkpoints_need_a_folder_that_all_processes_share(tmp_path):
    where, both = free_address(), []
    words = ("train", *SHORT, "hydra.run.dir=run", "checkpoint.rounds=1")
    words += ("cluster=manual", f"cluster.coordinator={where}", "cluster.processes=2")
    for process in range(2):
        folder = tmp_path / str(process)
        folder.mkdir()
        both.append(parsgd(*words, f"cluster.process={process}", cwd=folder))
    code, _, err = finished(both[0])
    finished(both[1])
    assert code == 2 and "process 1, on " in err
    assert err.count("need a folder that all of them share") == 1
    assert not [*tmp_path.rglob("result.json")]


def test_G6_H9_two_processes_killed_at_any_moment_end_as_if_they_had_not(tmp_path):
    words = ("--processes", "2", "--kills", "2", "--samples", "800")
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.kill_test", *words, "--only", "one_bit_sgd"],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0 and "equal" in run.stdout, run.stdout + run.stderr


def test_I3_J9_K2_a_sweep_of_two_processes_leaves_one_set_of_files(tmp_path):
    words = ("train", "-m", *SHORT[1:], "workers=2,3", "hydra.sweep.dir=s")
    words += ("checkpoint.rounds=10",)
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
    assert (tmp_path / "s/0/checkpoints/22").is_dir()
    assert (tmp_path / "s/0/train.log").read_text().count("] - step 22, ") == 1
    record = json.loads((tmp_path / "s/0/result.json").read_text())
    assert record["summary"]["placement"]["processes"] == 2
    assert json.loads((tmp_path / "s/1/result.json").read_text())["status"] == "failed"


def test_H9_no_process_goes_on_before_a_checkpoint_has_its_name(tmp_path):
    script = (HERE / "slow_commit.py", tmp_path)
    code, _, err = finished(parsgd("launch", "--processes", 2, *script))
    assert code == 0, err
    for process in range(2):
        found = json.loads((tmp_path / f"{process}.json").read_text())
        # The newest, and the records: those of the start and both ends.
        assert found == [[2, 2], [4, 3]]


def test_H1_parts_of_several_processes_have_checksums(tmp_path):
    words = ("strategy=local_sgd", "local_steps=2", "optimizer=momentum", "workers=4")
    words += ("epochs=1", "evaluations=1", "checkpoint.rounds=2", "hydra.run.dir=run")
    launch = ("launch", "--processes", "2", "train", *words, "checkpoint.keep_last=3")
    code, _, err = finished(parsgd(*launch, cwd=tmp_path))
    assert code == 0, err
    where = tmp_path / "run/checkpoints"
    steps = sorted(int(p.name) for p in where.iterdir() if p.name.isdigit())
    meta = json.loads((where / f"{steps[-1]}/meta/metadata").read_text())
    spread = [name for name, (_, _, shared, _) in meta["leaves"].items() if not shared]
    assert spread and {*meta["crc32"]} >= {*spread}
    assert all([*meta["crc32"][name]] == ["0", "1", "2", "3"] for name in spread)
    # Of worker 3, which process 1 has.
    damages = {other_numbers: "its checksum differs", part_of_process_1: "Exception: "}
    for damaged, processes, workers in (
        ((part_of_process_1, other_numbers), "2", "4"),
        ((other_numbers,), "1", "2"),
    ):
        resume = ("train", "resume=run", "epochs=2", f"workers={workers}")
        launch = ("launch", "--processes", processes, *resume)
        copy = tmp_path / processes
        shutil.copytree(tmp_path / "run", copy / "run")
        for damage, step in zip(damaged, reversed(steps), strict=False):
            damage(copy / f"run/checkpoints/{step}")
        code, out, err = finished(parsgd(*launch, cwd=copy))
        assert code == 0, err
        for damage, step in zip(damaged, reversed(steps), strict=False):
            said = out.partition(f"checkpoint of step {step} cannot be read")[2]
            assert damages[damage] in said[:400], out
        assert f"goes on from step {steps[-1 - len(damaged)]}" in out, out


def test_F1_several_processes_score_and_export_the_same_model(tmp_path):
    words = ("strategy=local_sgd", "workers=4", "local_steps=2", "epochs=1")
    words += ("evaluations=1", "checkpoint.rounds=10", "hydra.run.dir=run")
    code, _, err = finished(parsgd("train", *words, cwd=tmp_path))
    assert code == 0, err
    said = []
    for start in ((), ("launch", "--processes", "2")):
        code, out, err = finished(parsgd(*start, "evaluate", "run", cwd=tmp_path))
        assert code == 0, err
        # Not what gloo says, in pieces.
        gloo = ("Gloo", "peer ranks")
        lines = [x for x in out.splitlines() if not any(word in x for word in gloo)]
        said.append(lines)
        folder = f"out={len(said)}"
        code, _, err = finished(parsgd(*start, "export", "run", folder, cwd=tmp_path))
        assert code == 0, err
    (head, *scores), (head2, *scores2) = said
    assert head.startswith("digits, step 11, over ") and head2.endswith("2 processes")
    assert scores == scores2 and len(scores) == 2
    one, two = (load_file(tmp_path / i / "model.safetensors") for i in "12")
    assert one.keys() == two.keys()
    for name, x in one.items():
        np.testing.assert_allclose(x, two[name], rtol=1e-6, atol=1e-7)
    assert {p.name for p in tmp_path.glob("2/*")} == {"model.safetensors", "orbax"}
    three = ("launch", "--processes", "3", "evaluate", "run")
    code, _, err = finished(parsgd(*three, cwd=tmp_path))
    assert code == 2 and "cannot be spread evenly over 3 processes: start one" in err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_G6_a_process_that_dies_or_stops_ends_the_others_by_name(tmp_path, number):
    pairs = []  # one for each process that goes; who is left waits for most of the time
    for gone in range(2):
        where = free_address()
        folder = tmp_path / str(gone)
        folder.mkdir()
        environment = {"PARSGD_COORDINATOR": where, "PARSGD_PROCESSES": "2"}
        words = ("train", "workers=2", "epochs=100000", "hydra.run.dir=run")
        both = []
        for process in range(2):
            environment["PARSGD_PROCESS"] = str(process)
            both.append(parsgd(*words, cwd=folder, env=os.environ | environment))
        pairs.append((gone, both, folder / "run/metrics.jsonl"))
    try:
        deadline = time.monotonic() + 120
        for _, both, metrics in pairs:
            while not (metrics.is_file() and metrics.read_text()):
                assert time.monotonic() < deadline and both[0].poll() is None
                time.sleep(0.2)
        time.sleep(3)
        for gone, both, _ in pairs:
            both[gone].send_signal(number)
        for gone, both, _ in pairs:
            code, _, err = finished(both[1 - gone], 60)
            assert code == 1 and f"process {gone} of 2 is gone: no sign of life" in err
            assert f"Process {1 - gone} stops" in err and "Check failure" not in err
    finally:
        for _, both, _ in pairs:
            for process in both:
                process.kill()
                process.communicate()


def test_sigterm_to_one_process_has_all_save(tmp_path):
    words = ("launch", "--processes", "2", "train", *SHORT[:1], "rounds=4000")
    words += ("optimizer=momentum", "hydra.run.dir=run", "checkpoint.rounds=100000")
    metrics = tmp_path / "run/metrics.jsonl"
    run = parsgd(*words, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not (metrics.is_file() and metrics.read_text().count("\n") > 1):
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.05)
    last = psutil.Process(run.pid).children()[-1]
    last.send_signal(signal.SIGTERM)
    code, _, err = finished(run)
    assert code == 128 + signal.SIGTERM and "asked to end (SIGTERM)" in err, err
    saved = [
        step for step in os.listdir(tmp_path / "run/checkpoints") if step.isdigit()
    ]
    assert saved and int(saved[0]) < 4000
    code, out, err = finished(parsgd(*words, cwd=tmp_path))
    assert code == 0 and f"goes on from step {saved[0]}" in out, err
