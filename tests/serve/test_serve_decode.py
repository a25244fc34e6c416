"""Answers decoded with a draft, over a socket with the `openai` client: the same text, and what the passes gave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import serving as tool
from command_line import invoke
from models.tiny_drafts import write_draft

from sp.session import Pipeline

openai = pytest.importorskip("openai")

KEY, VALUE = "quiet-lantern", 8301947


@pytest.fixture(scope="module")
def drafting(pair: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tool.Running]:
    """The embedded pair with a random draft: right by chance alone, which must not show in the text."""
    folder = tmp_path_factory.mktemp("draft")
    config = pair.target.model.config
    draft = write_draft(folder, "dflash", config, (1, config.layers // 2, config.layers - 1))
    with tool.serving(pair.with_speculator(draft)) as running:
        yield running


def ask(server: tool.Running, **given: Any) -> Any:
    return tool.client(server).chat.completions.create(model="any", messages=tool.chat(KEY, VALUE), **given)


def test_a_request_says_how_it_is_decoded(drafting: tool.Running) -> None:
    plain = ask(drafting, extra_body={"sp": {"decode": "greedy"}})
    assert plain.usage.model_extra["sp"]["acceptance_length"] is None
    for name in ("dflash", "ddtree"):
        found = ask(drafting, extra_body={"sp": {"decode": name}})
        assert found.choices[0].message.content == plain.choices[0].message.content
        told = found.usage.model_extra["sp"]
        assert told["acceptance_length"] == sum(told["tokens_by_pass"]) / len(told["tokens_by_pass"]) >= 1
        ended = found.choices[0].finish_reason == "stop"  # by a token that is counted, though no part of the text
        assert sum(told["tokens_by_pass"]) == found.usage.completion_tokens - 1 + ended


def test_streamed_tokens_come_in_order(drafting: tool.Running) -> None:
    whole = ask(drafting).choices[0].message.content
    given = {"stream": True, "stream_options": {"include_usage": True}, "extra_body": {"sp": {"decode": "ddtree"}}}
    chunks = list(ask(drafting, **given))
    pieces = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    assert "".join(pieces) == whole
    assert len(pieces) > 1
    assert chunks[-1].usage.model_extra["sp"]["acceptance_length"] >= 1


def test_a_server_without_a_draft_says_so(server: tool.Running) -> None:
    for name, said in (("ddtree", "needs a draft model"), ("ddtre", "did you mean 'ddtree'")):
        with pytest.raises(openai.BadRequestError, match=said):
            ask(server, extra_body={"sp": {"decode": name}})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--decode", "ddtre"], "did you mean 'ddtree'"),
        (["--decode", "ddtree", "--set", "decode.budget=0"], "budget is 0"),
        (["--decode", "dflash", "--set", "decode.temperature=0.7"], "decodes speculatively only at temperature 0"),
        (["--decode", "ddtree", "--target", "some.gguf"], "needs a draft model for some.gguf"),
        (["--set", "draft.budget=4"], "unknown group of --set 'draft'"),
    ],
)
def test_what_the_command_refuses(arguments: list[str], said: str) -> None:
    assert said in str(invoke(["serve", *arguments]).exception)


def test_help_shows_an_example() -> None:
    assert "sp serve --decode ddtree" in invoke(["serve", "--help"]).output


def test_draft_files_are_read_before_anything_is_served(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.gguf")
    found = invoke(["serve", "--port", "0", "--device", "cpu", "--speculator", missing])
    assert "no such file" in str(found.exception)
