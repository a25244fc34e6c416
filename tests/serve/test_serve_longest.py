"""The longest answer of a request that has no limit of its own."""

from __future__ import annotations

from typing import Any

import pytest
from command_line import invoke

from sp.commands import serve
from sp.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ([], 4096),
        (["--max-tokens", "9k"], 9216),
        (["--max-new-tokens", "100"], 100),
        (["--max-tokens", "50", "--max-new-tokens", "100"], 50),
    ],
)
def test_it_is_that_of_any_request_unless_set(words: list[str], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()

    def opened(service: serve.ServiceOptions, *_: Any) -> None:
        seen.append(service.options.max_new_tokens)
        raise ConfigError("enough")

    monkeypatch.setattr(serve, "open_service", opened)
    assert str(invoke(["serve", "--port", "0", *words]).exception) == "enough"
    assert seen == [most]
