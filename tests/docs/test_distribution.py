"""What the package is called on an index, and that messages and pages ask for extras that it has."""

from __future__ import annotations

import re
import tomllib

from pages import ROOT, pages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_command_and_the_module_keep_their_name() -> None:
    assert PROJECT["name"] != "sp"
    assert PROJECT["scripts"] == {"sp": "sp.cli:main"}


def test_messages_name_the_distribution_and_extras_it_has() -> None:
    extras = set(PROJECT["optional-dependencies"])
    texts = {path: path.read_text() for path in [*(ROOT / "sp").rglob("*.py"), ROOT / "pyproject.toml"]}
    asked = [found for text in texts.values() for found in re.findall(r"([\w-]+)\[(\w+)\]['\"` ;,]", text)]
    asked = [(name, extra) for name, extra in asked if extra in extras and name in ("sp", PROJECT["name"])]
    assert len(asked) >= 8
    assert {name for name, _ in asked} == {PROJECT["name"]}
    local = [extra for page in pages() for extra in re.findall(r"'\.\[(\w+)\]'", page.read_text())]
    assert set(local) <= extras
    assert {"test", "docs", "cuda12", "cuda13", "serve", "study"} <= set(local)
