"""What users install is the whole of it, and what they type runs from it."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INSTALL = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment with the wheel in it, and what it needs from this one's."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # the build leaves files beside it
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "outputs", "multirun")
    shutil.copytree(ROOT, source, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--quiet", "--no-deps", source, "--wheel-dir", folder]
    subprocess.run(build, check=True, timeout=300)
    shutil.rmtree(source)
    (wheel,) = folder.glob("parsgd-*.whl")
    env = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    subprocess.run([*pip, "--python", env / "bin/python", *INSTALL, wheel], check=True)
    (site,) = env.glob("lib/python*/site-packages")
    # Only now: pip would take this environment's parsgd for an older one. The path
    # file that leads from there to the checkout is not read.
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return env, site / "parsgd"


def run(program, *words, cwd):
    """What it prints, as users have it: neither beside nor on a path to a checkout."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [program, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_every_choice_and_script(installed):
    _, package = installed
    for folder, pattern in (("conf", "*.yaml"), ("experiments", "*.py")):
        here, there = ROOT / folder, package / folder
        shipped = {path.relative_to(here) for path in here.rglob(pattern)}
        assert shipped
        assert shipped == {path.relative_to(there) for path in there.rglob(pattern)}
    assert (package / "py.typed").is_file()


@pytest.mark.slow
def test_the_wheel_runs_without_the_repository(installed, tmp_path):
    env, package = installed
    where = "import parsgd; print(parsgd.__file__)"
    found = run(env / "bin/python", "-c", where, cwd=tmp_path)
    assert Path(found.strip()) == package / "__init__.py"
    parsgd = env / "bin/parsgd"
    assert "block_momentum" in run(parsgd, "list", "strategy", cwd=tmp_path)
    run(parsgd, "train", "samples=64", "evaluations=1", cwd=tmp_path)
    (result,) = tmp_path.glob("outputs/*/*/result.json")
    assert '"status": "completed"' in result.read_text()
