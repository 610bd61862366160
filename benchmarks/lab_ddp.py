"""One process of the peer in the network lab: PyTorch DDP with gloo, plain SGD.

Started by ``parsgd lab``, whose environment says which process it is. Process 0 writes
the seconds per step of each window, or how many steps an accuracy took, to a file.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import data
from benchmarks.models import MLPS
from benchmarks.torch_ddp import build, parallel

HOOKS = ("none", "fp16", "powersgd", "alone")
DENSE_STEPS = 10  # before PowerSGD, which starts from gradients, not from nothing
EXAMPLES = 2000  # of a batch of an evaluation


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=[*MLPS], required=True)
    parser.add_argument("--hook", choices=HOOKS, required=True)
    parser.add_argument("--batch", type=int, required=True, help="of one process")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, required=True, help="of a window")
    parser.add_argument("--windows", type=int, required=True, help="at most")
    parser.add_argument("--target", type=float, help="stop at this accuracy")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    rank, train = _start(options)
    result = _steps_to(train, options) if options.target else _speed(train, options)
    if rank == 0:
        options.output.write_text(json.dumps(result))
    _leave()


def _start(options: argparse.Namespace) -> tuple[int, Callable]:
    """Join the others; returns the rank, and a function that trains some steps."""
    import torch
    from torch import distributed

    coordinator = os.environ["PARSGD_COORDINATOR"]
    rank, world = (int(os.environ[f"PARSGD_{k}"]) for k in ("PROCESS", "PROCESSES"))
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    net = build(options.model, dropout=True)
    if options.hook != "alone":
        where = f"tcp://{coordinator}"
        distributed.init_process_group(
            "gloo", init_method=where, rank=rank, world_size=world
        )
        # PowerSGD sends again when an answer has come. With several buckets the order
        # of that differs between processes, and with gloo they wait for each other.
        bucket = 100 if options.hook == "powersgd" else None
        net = parallel(net, bucket_cap_mb=bucket)
        _register(net, options.hook)
    torch.manual_seed(1000 * options.seed + rank)  # dropout differs between workers
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr)
    loss = torch.nn.CrossEntropyLoss()
    images = data.load()
    pixels = torch.from_numpy(images.pixels.copy())
    labels = torch.from_numpy(images.labels.astype(np.int64))
    order = _order(len(labels), options, rank, world)

    def train(steps: int):
        net.train()
        for _ in range(steps):
            take = torch.from_numpy(next(order))
            optimizer.zero_grad()
            loss(net(_prepared(pixels[take])), labels[take]).backward()
            optimizer.step()
        return net

    return rank, train


def _leave() -> None:
    """End the process as it is: torch's own end may abort over a hook's threads."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.barrier()  # all have their result
    sys.stdout.flush()
    os._exit(0)


def _register(net, hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import (
        default_hooks,
        powerSGD_hook,
    )

    if hook == "fp16":
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=DENSE_STEPS
        )
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _order(examples: int, options: argparse.Namespace, rank: int, world: int):
    """Batches of this process, from one permutation per epoch over all of them."""
    rng = np.random.default_rng(options.seed)
    size = options.batch * world
    while True:
        permutation = rng.permutation(examples)
        for start in range(rank * options.batch, examples - size + 1, size):
            yield permutation[start : start + options.batch]


def _prepared(pixels):
    return pixels.float().mul_(1 / (255 * data.STD)).sub_(data.MEAN / data.STD)


def _speed(train: Callable, options: argparse.Namespace) -> dict:
    train(DENSE_STEPS + 5)
    windows = []
    for _ in range(options.windows):
        begin = time.perf_counter()
        train(options.steps)
        windows.append((time.perf_counter() - begin) / options.steps)
    return {"seconds": windows}


def _steps_to(train: Callable, options: argparse.Namespace) -> dict:
    """Every process evaluates, so that all stop at the same step."""
    import torch

    from parsgd.data import load_fashion_mnist

    test = load_fashion_mnist().test
    pixels = torch.from_numpy(np.array(test.x).reshape(len(test.y), -1))
    labels = torch.from_numpy(np.array(test.y).astype(np.int64))
    accuracy = 0.0
    for window in range(1, options.windows + 1):
        net = train(options.steps)
        net.eval()
        with torch.no_grad():
            hits = [
                (net(_prepared(x)).argmax(1) == y).sum().item()
                for x, y in zip(
                    pixels.split(EXAMPLES), labels.split(EXAMPLES), strict=True
                )
            ]
        accuracy = sum(hits) / len(labels)
        if accuracy >= options.target:
            return {"steps": window * options.steps, "accuracy": accuracy}
    return {"steps": None, "accuracy": accuracy}


if __name__ == "__main__":
    main()
