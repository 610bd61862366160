"""What users install is the whole of it."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_runs_without_the_repository(tmp_path):
    source = tmp_path / "source"  # the build leaves files beside it
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "outputs", "multirun")
    shutil.copytree(ROOT, source, ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", str(source)]
    subprocess.run([*build, "--wheel-dir", str(tmp_path)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("parsgd-*.whl")
    inside = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(inside)
    shipped = {p.relative_to(ROOT / "conf") for p in (ROOT / "conf").rglob("*.yaml")}
    conf = inside / "parsgd/conf"
    assert shipped == {p.relative_to(conf) for p in conf.rglob("*.yaml")}
    # The folder of the wheel comes before the checkout that tests run from.
    script = (
        f"import sys; sys.path.insert(0, {str(inside)!r}); import parsgd.cli as c; "
    )
    script += f"assert c.__file__.startswith({str(inside)!r}); sys.exit(c.main(%r))"
    for words in (["list", "strategy"], ["train", "epochs=1", "evaluations=1"]):
        run = subprocess.run(
            [sys.executable, "-c", script % words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert run.returncode == 0, run.stderr
    assert [*tmp_path.glob("outputs/*/*/result.json")]
