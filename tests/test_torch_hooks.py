"""PowerSGD beside PyTorch's hook, on the same gradients in two gloo processes.

PyTorch orthogonalises the Q it starts from as well as P. P spans the same, so results
are equal to rounding. Both start from a random Q: PyTorch's is set to ours.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from reducing import gradients, trajectory
from test_power_sgd import first_q

from parsgd.reducers import power_sgd

SCRIPT = """
import sys
import numpy as np, torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
data = np.load(folder + "/data.npz")
g = torch.tensor(data["g"][rank])
module = torch.nn.Module()
module.w = torch.nn.Parameter(torch.zeros(g.shape[1:]))
module.forward = lambda x: (module.w * x).sum()
ddp = torch.nn.parallel.DistributedDataParallel(module)
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
dist.destroy_process_group()
"""


def test_power_sgd_is_pytorchs(tmp_path):
    pytest.importorskip("torch")
    g = gradients((12, 8), 2, 6)
    np.savez(tmp_path / "data.npz", g=g, q=first_q(2, 8))
    env = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, str(rank), str(tmp_path)],
            env=env,
        )
        for rank in range(2)
    ]
    assert [run.wait(timeout=60) for run in runs] == [0, 0]
    theirs = [np.load(tmp_path / f"out{rank}.npy") for rank in range(2)]
    # Its first two steps are dense, without a residual.
    np.testing.assert_allclose(theirs[0][:2], g[:, :2].mean(0), rtol=1e-5, atol=1e-6)
    outs, _ = trajectory(power_sgd(2), ("vmap", 1, 2), {"w": g[:, 2:]})
    for rank in range(2):
        np.testing.assert_allclose(theirs[rank][2:], outs["w"][rank], atol=1e-4)
