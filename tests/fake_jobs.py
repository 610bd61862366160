"""Made-up job folders for the tests of results and report: never shown as results."""

import math

import numpy as np

from parsgd import results

RATES = {"single": 0.9, "sync_sgd": 1.0, "local_sgd": 1.25, "block_momentum": 1.15}
DENSE = 2 * 258_000 * 4


def fake_config(strategy="local_sgd", workers=4, seed=0, **more):
    optimizer = {"_target_": "optax.sgd", "learning_rate": 0.05}
    call = {"_target_": f"parsgd.{strategy}", "optimizer": optimizer}
    return {
        "strategy": strategy if isinstance(strategy, dict) else call,
        "task": {"_target_": "parsgd.digits", "model": {"_target_": "parsgd.mlp"}},
        "workers": workers,
        "local_steps": 4 if strategy in ("local_sgd", "block_momentum") else 1,
        "worker_batch": 32,
        "global_batch": None,
        "samples": 60_000,
        "target_accuracy": None,
        "seed": seed,
        **more,
    }


def fake_curve(config, evaluations=11, top=0.98, speed=1.0, regression=False):
    """Saturating accuracy; seconds, bytes and rounds that follow from the sizes."""
    strategy = config["strategy"]["_target_"].rpartition(".")[2]
    rng = np.random.default_rng([config["seed"], config["workers"], len(strategy)])
    rate = RATES.get(strategy, 1.0) * speed / config["workers"] ** 0.2
    batch = config["worker_batch"] * config["workers"]
    rounds = config["samples"] // (batch * config["local_steps"])
    sent = 0 if config["workers"] == 1 else DENSE
    full = 8.0 / (RATES.get(strategy, 1.0) * config["workers"] ** 0.7)
    full *= 1 + rng.normal(0, 0.03)
    lines = []
    for step in range(evaluations):
        share = step / max(evaluations - 1, 1)
        accuracy = 0.1 + (top - 0.1) * (1 - math.exp(-7 * rate * share))
        accuracy += rng.normal(0, 0.003)
        done = round(rounds * share)
        lines.append(
            {
                "round": done,
                "step": done * config["local_steps"],
                "samples": done * config["local_steps"] * batch,
                "epoch": done * config["local_steps"] * batch / 1500,
                "seconds": full * share,
                "batch_loss": None if step == 0 else 2.3 * math.exp(-4 * rate * share),
                "train_loss": 2.3 * math.exp(-4 * rate * share),
                "test_loss": 2.4 * math.exp(-3.5 * rate * share) + rng.uniform(0, 0.01),
                "test_accuracy": None if regression else min(max(accuracy, 0.0), 1.0),
                "bytes": done * sent,
                "spread": 0.01 * share,
                "learning_rate": 0.05 * math.sqrt(config["workers"]),
            }
        )
    return lines


def fake_job(folder, *, status="completed", reason=None, overrides=None, **options):
    """Write one job's folder as the trainer would; return its config."""
    curve = {k: options.pop(k) for k in CURVE if k in options}
    config = fake_config(**options)
    lines = fake_curve(config, **curve)
    results.begin(folder, config)
    for line in lines:
        results.append(folder, line)
    if status == "interrupted":
        return config
    strategy = config["strategy"]["_target_"].rpartition(".")[2]
    steps = config["local_steps"]
    final = lines[-1] if lines and status != "failed" else None
    summary = {} if status == "failed" else _summary(config, steps, lines)
    results.finish(
        folder,
        {
            "status": status,
            "reason": reason,
            "config": config,
            "overrides": overrides
            if overrides is not None
            else [f"strategy={strategy}", f"workers={config['workers']}"],
            "started": f"2026-01-02T03:04:{config['seed'] % 60:02d}",
            "summary": summary,
            "final": final,
            "best": max(lines, key=lambda x: x["test_accuracy"] or 0)
            if final
            else None,
            "versions": results.versions(),
            "machine": results.machine(devices=["cpu:0"]),
        },
    )
    return config


CURVE = ("evaluations", "top", "speed", "regression")


def _summary(config, steps, lines):
    sent = 0 if config["workers"] == 1 else DENSE
    seconds = lines[-1]["seconds"] if lines else 0.0
    return {
        "workers": config["workers"],
        "local_steps": steps,
        "worker_batch": config["worker_batch"],
        "global_batch": config["worker_batch"] * config["workers"],
        "steps_per_epoch": 46,
        "parameters": 258_000,
        "learning_rate": 0.05 * math.sqrt(config["workers"]),
        "lr_factor": math.sqrt(config["workers"]),
        "placement": {"kind": "vmap", "devices": 1, "lanes": config["workers"]},
        "compile_seconds": 1.5,
        "train_seconds": seconds,
        "eval_seconds": 0.2,
        "samples_per_second": lines[-1]["samples"] / seconds if seconds else None,
        "bytes_per_round": sent,
        "bytes_dense_per_round": sent * steps,
        "bytes": lines[-1]["bytes"] if lines else 0,
        "bytes_dense": lines[-1]["bytes"] * steps if lines else 0,
        "rounds": lines[-1]["round"] if lines else 0,
        "steps": lines[-1]["step"] if lines else 0,
        "samples": lines[-1]["samples"] if lines else 0,
        "dropped_per_epoch": 12,
        "peak_memory_bytes": 200_000_000,
    }


def write_job(folder, lines, *, seed=0, status="completed", summary=None, **config):
    """A job with exactly these evaluations."""
    config = fake_config(seed=seed, **config)
    results.begin(folder, config)
    for line in lines:
        results.append(folder, line)
    results.finish(
        folder,
        {
            "status": status,
            "config": config,
            "summary": summary or {},
            "final": lines[-1] if lines else None,
        },
    )


def line(round, accuracy, seconds=None, **more):
    seconds = round / 10 if seconds is None else seconds
    sizes = {"samples": round * 100, "bytes": round * 1000, "seconds": seconds}
    return {"round": round, "test_accuracy": accuracy, **sizes, **more}


def fake_sweep(root, *, seeds=3, workers=(1, 2, 4, 8), strategies=tuple(RATES)):
    """Strategies x workers x seeds, with a diverged, a failed and a killed job."""
    number = 0
    for strategy in strategies:
        for count in workers if strategy != "single" else (1,):
            for seed in range(seeds):
                fake_job(
                    root / str(number), strategy=strategy, workers=count, seed=seed
                )
                number += 1
    fake_job(
        root / str(number),
        strategy="block_momentum",
        workers=16,
        status="diverged",
        reason="loss was not finite for 3 rounds, from round 12",
        evaluations=3,
        top=0.5,
    )
    fake_job(
        root / str(number + 1),
        strategy="sync_sgd",
        workers=3,
        status="failed",
        reason="8 workers do not fit <3> devices: use placement=vmap",
        evaluations=0,
    )
    fake_job(
        root / str(number + 2),
        strategy="local_sgd",
        workers=32,
        status="interrupted",
        evaluations=4,
    )
