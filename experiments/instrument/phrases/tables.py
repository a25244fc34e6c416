"""Phrases are data: what a module says stands in the YAML file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def table(module: str) -> dict[str, Any]:
    """Tables of the module of that name, every list in them as a tuple."""
    file = Path(__file__).with_name(f"{module.rpartition('.')[2]}.yaml")
    return {name: _fixed(value) for name, value in yaml.safe_load(file.read_text(encoding="utf-8")).items()}


def _fixed(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_fixed, value))
    return {key: _fixed(one) for key, one in value.items()} if isinstance(value, dict) else value
