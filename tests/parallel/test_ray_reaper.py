"""Remaining processes of Ray are ended if the process that started it was killed; see also tests/ray_orphans.py."""

from __future__ import annotations

import io
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from sp import cluster


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes cannot be looked through")
def test_only_processes_of_ray_that_are_the_owners_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(name: str, owner: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([name, "30"], executable="/bin/sleep", env={**os.environ, cluster.OWNER: owner})

    ours, other, named = started("ray::Agent", "one"), started("ray::Agent", "two"), started("sleep", "one")
    monkeypatch.setattr(cluster, "LEFT_SECONDS", 0.1)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO()))
    cluster.end_left("one")
    assert ours.wait(5) == -signal.SIGKILL
    for each in (other, named):
        assert each.poll() is None
        each.kill()
        each.wait()
