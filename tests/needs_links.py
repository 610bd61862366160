"""Whether this machine can have a lab."""

import os
import subprocess

import pytest

from parsgd.lab import links


def _why_not():
    if reason := links.missing():
        return reason
    probe = f"parsgd-test-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", probe], check=True)
    return None


WHY_NOT = _why_not()
needs_links = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")
