"""Check paths that a command will write, as its command line is read: no work is lost to a wrong one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sp.errors import ConfigError


def check_folder(folder: Path, option: str) -> None:
    """Raise ConfigError if nothing can be written below a folder, which need not exist yet.

    >>> check_folder(Path("/dev/null/results"), "--record")
    Traceback (most recent call last):
    sp.errors.ConfigError: cannot write below /dev/null/results; check the path given to --record
    """
    absolute = Path(os.path.abspath(folder))
    nearest = next((parent for parent in (absolute, *absolute.parents) if os.path.exists(parent)), absolute)
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise ConfigError(f"cannot write below {folder}; check the path given to {option}")


def check_file(path: Path, option: str) -> None:
    """Raise ConfigError if a file cannot be written, whose folder need not exist yet."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give {option} the name of a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise ConfigError(f"cannot write {path}; check the path given to {option}")
    check_folder(path.parent, option)


CHECKS: dict[str, Callable[[Path, str], None]] = {"file": check_file, "folder": check_folder}
"""By the `writes` of an option."""
