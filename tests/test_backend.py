"""JAX's backend: importing does not start it, and devices are made before it."""

import os
import subprocess
import sys
from pathlib import Path

import parsgd


def test_I2_import_starts_no_backend():
    code = (
        "import parsgd, parsgd.cli, parsgd.config, parsgd.report, parsgd.results, jax;"
        "jax.config.update('jax_num_cpu_devices', 3);"
        "assert len(jax.devices()) == 3"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_I2_no_module_starts_a_backend_or_a_cluster():
    # As inside a job of one task, whose marks must not be taken for several.
    code = (
        "import importlib, os, pkgutil, parsgd\n"
        "os.environ.update(SLURM_JOB_ID='1', SLURM_NTASKS='1', SLURM_PROCID='0')\n"
        "found = pkgutil.walk_packages(parsgd.__path__, 'parsgd.')\n"
        "names = [m.name for m in found if not m.name.endswith('__main__')]\n"
        "for name in names: importlib.import_module(name)\n"
        "import jax\nfrom jax._src import xla_bridge\n"
        "print(len(names), xla_bridge.backends_are_initialized())\n"
        "print(jax.distributed.is_initialized())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    package = Path(parsgd.__file__).parent
    files = [f for f in package.rglob("*.py") if f.name != "__main__.py"]
    assert out == [str(len(files) - 1), "False", "False"]  # but for the package itself


def test_I1_devices_from_a_script_and_too_late():
    code = (
        "import parsgd, optax, sys; sys.path.insert(0, 'tests');"
        "task = parsgd.digits(parsgd.models.MLP(features=[4]));"
        "f = lambda d: parsgd.fit(task, parsgd.sync_sgd(optax.sgd(.1)), workers=d,"
        " worker_batch=4, rounds=2, placement='shard_map', devices=d);"
        "print(f(5).summary['placement']['devices']);"
        "\ntry: f(6)\nexcept parsgd.UserError as e: print(e)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert out.startswith("5\n") and "jax_num_cpu_devices', 6" in out


def test_I1_devices_that_XLA_FLAGS_asks_for():
    code = (
        "import parsgd, optax, jax;"
        "task = parsgd.digits(parsgd.models.MLP(features=[4]));"
        "parsgd.fit(task, parsgd.sync_sgd(optax.sgd(.1)), worker_batch=4, rounds=2);"
        "print(len(jax.devices()))"
    )
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=9"}
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True,
        env=os.environ | flags,
    ).stdout  # fmt: skip
    assert out == "9\n"


def test_I2_a_platform_that_is_not_there_is_named():
    code = (
        "import parsgd, optax;"
        "task = parsgd.digits(parsgd.models.MLP(features=[4]));"
        "sizes = dict(worker_batch=4, rounds=2);"
        "\ntry: parsgd.fit(task, parsgd.single(optax.sgd(.1)), **sizes)"
        "\nexcept parsgd.UserError as e: print(e)"
    )
    for platform in ("cuda", "abacus"):
        out = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True,
            env=os.environ | {"JAX_PLATFORMS": platform},
        ).stdout  # fmt: skip
        assert out.startswith(f"JAX cannot start with JAX_PLATFORMS={platform}")
