"""The peer: PyTorch DDP with gloo, a process of one thread per worker, plain SGD.

The images lie in memory as uint8 tensors and batches are taken by index, as in the JAX
loops. ``start`` runs this file in processes of its own, so that nothing else lives in
them, and returns the window.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np

from benchmarks import data

ROOT = Path(__file__).parent.parent
IDLE = timedelta(hours=6)  # a rank may wait that long for its next window


def start(
    model: str, dropout: bool, *, workers: int, batch: int, lr: float, seconds: float
) -> Callable[[], int]:
    """Start one process per worker; each call of the result runs one timed window.

    Args:
      model: a name of benchmarks.models.
      dropout: the preset's dropout rate, or none.
      workers: processes of one thread each.
      batch: examples of one worker.
      lr: learning rate.
      seconds: length of a window.

    Raises:
      RuntimeError: PyTorch is missing or a process failed to start.
    """
    store = _free_port()
    ranks = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.torch_ddp", "--model", model),
                *("--world", str(workers), "--rank", str(rank), "--port", str(store)),
                *("--batch", str(batch), "--lr", str(lr), "--seconds", str(seconds)),
                *(["--dropout"] if dropout else []),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(workers)
    ]

    def window() -> int:
        for rank in ranks:
            if rank.poll() is None:
                print("window", file=rank.stdin, flush=True)
        answers = [rank.stdout.readline() for rank in ranks]
        if not all(answers):
            raise RuntimeError("a PyTorch process ended; is torch installed?")
        return sum(map(int, answers))

    return window


def serve(options: argparse.Namespace) -> None:
    """One rank: train a window for every line that comes in."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{options.port}",
        rank=options.rank,
        world_size=options.world,
        timeout=IDLE,
    )
    images = data.load()
    pixels = torch.from_numpy(images.pixels.copy())
    labels = torch.from_numpy(images.labels.astype(np.int64))
    net = parallel(build(options.model, options.dropout))
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr)
    loss = torch.nn.CrossEntropyLoss()
    rng = np.random.default_rng(options.rank)

    def train(steps: int) -> None:
        index = rng.integers(0, len(labels), (steps, options.batch))
        for take in torch.from_numpy(index):
            x = (
                pixels[take]
                .float()
                .mul_(1 / (255 * data.STD))
                .sub_(data.MEAN / data.STD)
            )
            optimizer.zero_grad()
            loss(net(x), labels[take]).backward()
            optimizer.step()

    train(20)
    begin = time.perf_counter()
    train(20)
    steps = torch.tensor(20 * options.seconds / (time.perf_counter() - begin))
    distributed.broadcast(steps, src=0)  # all ranks take the same number of steps
    steps = max(1, int(steps))
    for _ in sys.stdin:
        train(steps)
        print(steps * options.batch, flush=True)
    distributed.destroy_process_group()


def parallel(net, **more):
    """DDP at its fastest: gradients lie in the buckets that are sent, uncopied."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(net, gradient_as_bucket_view=True, **more)


def build(name: str, dropout: bool):
    """The model of benchmarks.models in PyTorch."""
    from torch import nn

    from benchmarks.models import CLASSES, CNN_RATE, MLPS

    if name == "cnn":
        stage = lambda i, o: (nn.Conv2d(i, o, 5, padding=2), nn.MaxPool2d(2), nn.ReLU())
        hidden = [nn.Flatten(), nn.Linear(784, 128), nn.ReLU()]
        hidden += [nn.Dropout(CNN_RATE)] if dropout else []
        stages = (nn.Unflatten(1, (1, 28, 28)), *stage(1, 8), *stage(8, 16))
        return nn.Sequential(*stages, *hidden, nn.Linear(128, CLASSES))
    widths, rate = MLPS[name]
    layers, size = [], 784
    for width in widths:
        layers += [nn.Linear(size, width), nn.ReLU()]
        layers += [nn.Dropout(rate)] if dropout else []
        size = width
    return nn.Sequential(*layers, nn.Linear(size, CLASSES, bias=False))


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dropout", action="store_true")
    for name in ("world", "rank", "port", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("lr", "seconds"):
        parser.add_argument(f"--{name}", type=float, required=True)
    serve(parser.parse_args())
