"""Scripts on a device that only counts, each in a process of its own: the device takes the place of the real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MODELS = Path(__file__).parent / "models"
"""Where `dry_device` and `dry_memory` lie; a script is given it first."""


def walked(script: str, *arguments: str) -> str:
    """What a script prints; it must end well."""
    command = [sys.executable, "-c", script, str(MODELS), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
