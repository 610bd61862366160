"""PowerSGD and half precision beside PyTorch's hooks, in two gloo processes.

PyTorch orthogonalises the Q it starts from as well as P. P spans the same, so results
are equal to rounding. Both start from a random Q: PyTorch's is set to ours.

Its half-precision hook rounds a gradient and then divides it by W; here it is divided
first. With two workers both give the same bits, except where rounding overflows (its
gradients above 65504 are infinite, here those above W times that) and for numbers of
less than 2^-13, which may lose a bit twice there.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from reducing import gradients, trajectory
from test_power_sgd import first_q

from parsgd.compressors import fp16
from parsgd.reducers import compressed_all_reduce, power_sgd

SCRIPT = """
import sys
import numpy as np, torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks, powerSGD_hook as power)
rank, folder, hook = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
data = np.load(folder + "/data.npz")
g = torch.tensor(data["g"][rank])
module = torch.nn.Module()
module.w = torch.nn.Parameter(torch.zeros(g.shape[1:]))
module.forward = lambda x: (module.w * x).sum()
ddp = torch.nn.parallel.DistributedDataParallel(module)
if hook == "fp16":
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
else:
    state = power.PowerSGDState(None, matrix_approximation_rank=2,
        start_powerSGD_iter=2, min_compression_rate=1)
    ddp.register_comm_hook(state, power.powerSGD_hook)
    first = torch.tensor(data["q"], dtype=torch.float32)
    randn = torch.randn
    torch.randn = lambda *a, **k: first.reshape(randn(*a, **k).shape)
outs = []
for step in g:
    module.w.grad = None
    ddp(step).backward()
    outs.append(module.w.grad.numpy().copy())
np.save(f"{folder}/out{rank}.npy", np.stack(outs))
dist.barrier()  # or one may end while the other still reads from it
dist.destroy_process_group()
"""


def pytorchs(folder, hook, **data):
    """What each of two processes gets from a hook in every step."""
    pytest.importorskip("torch")
    np.savez(folder / "data.npz", **data)
    env = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    runs = [
        subprocess.Popen([*command, str(rank), str(folder), hook], env=env)
        for rank in range(2)
    ]
    for run in runs:
        # Gloo may abort one that ends while the other still listens to it: what they
        # got was written before that.
        run.wait(timeout=120)
    return [np.load(folder / f"out{rank}.npy") for rank in range(2)]


def test_power_sgd_is_pytorchs(tmp_path):
    g = gradients((12, 8), 2, 6)
    theirs = pytorchs(tmp_path, "power_sgd", g=g, q=first_q(2, 8))
    # Its first two steps are dense, without a residual.
    np.testing.assert_allclose(theirs[0][:2], g[:, :2].mean(0), rtol=1e-5, atol=1e-6)
    outs, _ = trajectory(power_sgd(2), ("vmap", 1, 2), {"w": g[:, 2:]})
    for rank in range(2):
        np.testing.assert_allclose(theirs[rank][2:], outs["w"][rank], atol=1e-4)


def test_half_precision_is_pytorchs(tmp_path):
    g = gradients((12, 8), 2, 4)
    g[:, 1] *= 1000
    g[:, 2] *= 1e-6  # below half precision's normal numbers
    g[:, 3, 0, 0] = 70000, 3
    theirs = pytorchs(tmp_path, "fp16", g=g)
    np.testing.assert_array_equal(theirs[0], theirs[1])
    for place in (("vmap", 1, 2), ("shard_map", 2, 1)):
        outs, _ = trajectory(compressed_all_reduce(fp16()), place, {"w": g})
        for ours in outs["w"]:
            np.testing.assert_array_equal(theirs[0][:2], ours[:2])
            np.testing.assert_allclose(theirs[0][2], ours[2], rtol=0, atol=2.0**-23)
            assert np.isinf(theirs[0][3, 0, 0]) and ours[3, 0, 0] == 35008
            np.testing.assert_array_equal(theirs[0][3, 1:], ours[3, 1:])
