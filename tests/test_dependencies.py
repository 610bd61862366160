"""What the package imports is declared, not left to what others happen to need."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

from documents import ROOT


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def imported():
    """Top-level names that the package imports, wherever in a file."""
    for path in (ROOT / "parsgd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield str(node.module).partition(".")[0]


def test_every_imported_package_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    users = [extras[name] for name in extras if name not in ("test", "lint")]
    lines = sum(users, project["dependencies"])
    declared = {normal(re.match(r"[\w.-]+", line)[0]) for line in lines}
    names = {*imported()} - {*sys.stdlib_module_names, "parsgd"}
    assert {"jax", "yaml", "sklearn"} <= names
    providers = packages_distributions()
    for name in names:
        # Several distributions may share a name, as plugins of Hydra do.
        found = {normal(x) for x in providers.get(name, [name])}
        assert found & declared, f"parsgd imports {name}: declare one of {found}"


def test_orbax_is_imported_by_runs_that_save_only():
    """It takes seconds."""
    program = """
import sys
import optax, parsgd, parsgd.train, parsgd.cli.job
from tiny import tiny
sizes = {"workers": 2, "worker_batch": 4, "rounds": 2, "placement": "vmap"}
parsgd.fit(tiny(), parsgd.sync_sgd(optax.sgd(0.1)), **sizes)
sys.exit("orbax.checkpoint" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT / "tests", check=True)
