"""What the package is called on an index, and that messages and pages ask for extras that it has."""

from __future__ import annotations

import ast
import re
import sys
import tomllib

from pages import ROOT, pages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


BEGINNINGS: dict[str, str | tuple[str, ...]] = {
    "cupy": "sp/kernels",
    "httpx": "sp/front",
    "llguidance": "sp/serve",
    "prometheus_client": ("sp/serve", "sp/front"),
    "ray": "sp/serve",
    "starlette": ("sp/serve", "sp/front"),
    "uvicorn": "sp/serve",
}
"""Modules of extras, and the folders alone that import each: commands ask for these before they begin their work."""


def names(text: str) -> set[str]:
    """Modules that a source imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_what_the_install_of_the_readme_lacks_is_asked_for_before_the_work() -> None:
    """No command may find out at its end that a package for its results is missing. Pillow comes with Matplotlib."""
    needed = {re.match(r"[\w-]+", each)[0].lower() for each in PROJECT["dependencies"]}  # type: ignore[index]
    modules = {"pyyaml": "yaml", "jinja2": "jinja2"}
    own = {modules.get(name, name) for name in needed} | {"sp", "cuda", "PIL"} | set(sys.stdlib_module_names)
    for path in (ROOT / "sp").rglob("*.py"):
        for name in names(path.read_text()) - own:
            folder = str(path.relative_to(ROOT).parent)
            assert folder.startswith(BEGINNINGS.get(name, "nowhere")), f"{path} imports {name}"


def test_the_command_and_the_module_keep_their_name() -> None:
    assert PROJECT["name"] != "sp"
    assert PROJECT["scripts"] == {"sp": "sp.cli:main"}


def test_messages_name_the_distribution_and_extras_it_has() -> None:
    extras = set(PROJECT["optional-dependencies"])
    texts = {path: path.read_text() for path in [*(ROOT / "sp").rglob("*.py"), ROOT / "pyproject.toml"]}
    asked = [found for text in texts.values() for found in re.findall(r"([\w-]+)\[(\w+)\]['\"` ;,]", text)]
    asked = [(name, extra) for name, extra in asked if extra in extras and name in ("sp", PROJECT["name"])]
    assert len(asked) >= 7
    assert {name for name, _ in asked} == {PROJECT["name"]}
    local = [extra for page in pages() for extra in re.findall(r"'\.\[(\w+)\]'", page.read_text())]
    assert set(local) <= extras
    assert {"test", "docs", "cuda12", "cuda13", "serve", "study"} <= set(local)
