"""Names that the shared tests of scorers, selectors and tasks cover, those of plugins among them."""

from __future__ import annotations

from typing import Any

from sp.config import Registry
from sp.plugins import loaded_plugins


def names_under_test(registry: Registry[Any]) -> list[str]:
    """Return the names of what the package registers, and of what plugins do that ``pytest --plugin`` loaded."""
    plugins = {plugin.module for plugin in loaded_plugins()}
    modules = {name: registry.class_of(name).__module__ for name in registry}
    return [name for name, module in modules.items() if module.startswith("sp.") or module in plugins]
