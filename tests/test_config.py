"""Options are checked strictly: unknown keys, wrong types and missing fields are one-line errors."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

import pytest

import sp
from sp.config import Registry, from_mapping, import_modules, token_count
from sp.errors import ConfigError


@dataclass(frozen=True)
class Example:
    width: int
    scale: float = 1.0
    mode: Literal["max", "mean"] = "max"
    layers: tuple[int, ...] | None = None


def test_builds_with_int_taken_for_float_and_list_for_tuple() -> None:
    built = from_mapping(Example, {"width": 3, "scale": 2, "layers": [1, 2]}, "example")
    assert built == Example(3, 2.0, "max", (1, 2))
    assert isinstance(built.scale, float)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"widht": 3}, "did you mean 'width'"),
        ({"width": "3"}, "width must be int, not '3'"),
        ({"width": True}, "width must be int"),
        ({"width": 1, "mode": "maxx"}, "did you mean 'max'"),
        ({"width": 1, "layers": ["a"]}, "layers must be"),
        ({}, "width is required"),
    ],
)
def test_bad_values_are_one_line_errors(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        from_mapping(Example, values, "example")
    assert "\n" not in str(caught.value)


def test_registry_builds_fresh_and_names_the_nearest() -> None:
    registry: Registry[object] = Registry("thing")
    registry.register("example")(Example)
    first, second = registry.build("example", {"width": 1}), registry.build("example", {"width": 1})
    assert first == second
    assert first is not second
    with pytest.raises(ConfigError, match="unknown thing 'exampel'; did you mean 'example'"):
        registry.build("exampel")
    with pytest.raises(ConfigError, match="registered twice"):
        registry.register("example")(Example)


def test_public_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse(Path(sp.__file__).read_text())
    [guard] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {
        str(name.asname): node.module for node in guard.body if isinstance(node, ast.ImportFrom) for name in node.names
    }
    assert seen == sp.HOMES
    assert set(sp.__all__) == {*seen, "load", "__version__"}
    for name, home in sp.HOMES.items():
        assert getattr(sp, name) is getattr(import_module(home), name)


def test_modules_of_a_package_are_found_rooms_inside_it_included(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("rooms/__init__.py", "rooms/b.py", "rooms/a.py", "rooms/inner/__init__.py", "rooms/inner/c.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert [module.__name__ for module in import_modules("rooms")] == ["rooms.a", "rooms.b", "rooms.inner.c"]
    (tmp_path / "rooms" / "d.py").write_text("raise ValueError('broken')")
    with pytest.raises(ValueError, match="broken"):
        import_modules("rooms")


@pytest.mark.parametrize(
    ("text", "count"), [("1k", 1024), ("128k", 131072), ("0", 0), ("1.5K", 1536), ("2m", 1 << 21), (" 8k ", 8192)]
)
def test_numbers_of_tokens_as_people_write_them(text: str, count: int) -> None:
    assert token_count(text, "it") == count
    assert from_mapping(sp.RunOptions, {"threshold": text}, "x").threshold == count
    assert sp.RunOptions(threshold=text).threshold == count  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "k", "-1", "1.2345k", "1e3", "8kB", "1_000", "9" * 5000, "\u0663k", "1.5"])
def test_what_is_no_number_of_tokens_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="is a number of tokens such as 512, 8k or 1m") as caught:
        from_mapping(sp.RunOptions, {"threshold": text}, "x")
    assert len(str(caught.value)) < 300


def test_a_text_is_no_number_where_no_tokens_are_meant() -> None:
    with pytest.raises(ConfigError, match="seed must be int, not '1k'"):
        from_mapping(sp.RunOptions, {"seed": "1k"}, "x")
