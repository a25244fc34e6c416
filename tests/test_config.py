"""Options are checked strictly: unknown keys, wrong types and missing fields are one-line errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from sp.config import Registry, from_mapping
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
