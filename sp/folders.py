"""Where `sp` keeps what it made or fetched once: compiled kernels, hashes of files, models."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of all that: ``SP_CACHE_DIR``, else ``sp`` in the user's cache folder."""
    named = os.environ.get("SP_CACHE_DIR")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sp"
