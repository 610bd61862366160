"""JAX's backend: importing does not start it, and devices are made before it."""

import subprocess
import sys


def test_I2_import_starts_no_backend():
    code = (
        "import parsgd, parsgd.cli, parsgd.config, parsgd.report, parsgd.results, jax;"
        "jax.config.update('jax_num_cpu_devices', 3);"
        "assert len(jax.devices()) == 3"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
