"""Bytes that a vocabulary has no token for: the run goes on without them, and says how many they were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from sp.chat import Turn
from sp.gguf import GGUFFile, Tokenizer
from sp.gguf.tokens.byte_pair import byte_alphabet
from sp.prompt import Prompt
from sp.prompt.prompt import prompt_of
from sp.serve.messages import RequestStats, usage
from sp.session import Conversation, Loaded, Pipeline, RunOptions, RunResult, embedded, load
from sp.studies.pages.run_report import print_outcome, summary
from sp.studies.sample import sample

OPTIONS = RunOptions(keep_ratio=0.2, compress="always", max_new_tokens=12)
LINE = "target: 3 bytes left out, which its vocabulary has no token for (0x04, 0x1d)"


def lacking(loaded: Loaded, *absent: int) -> Loaded:
    """The same model, without tokens for some bytes."""
    names = {chr(byte_alphabet()[byte]): f"<no {byte:02x}>" for byte in absent}
    with GGUFFile.open(loaded.path) as file:
        tokens = [names.get(token, token) for token in file.metadata["tokenizer.ggml.tokens"]]  # type: ignore[union-attr]
        tokenizer = Tokenizer.from_metadata(dict(file.metadata) | {"tokenizer.ggml.tokens": tokens})
    return replace(loaded, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def pair() -> Pipeline:
    """The drafter is its own target, but for its vocabulary."""
    return Pipeline(lacking(load(embedded("drafter"), device="cpu"), 4, 29), load(embedded("drafter"), device="cpu"))


def dirty(clean: str, needle: str) -> str:
    """The sample, with bytes in front, in the needle's line, and at the end."""
    at = clean.index(needle)
    return f"\x04{clean[:at]}\x1d{clean[at:]}\x04"


@pytest.fixture(scope="module")
def result(pair: Pipeline) -> RunResult:
    document, example = sample()
    at = document.index(example.needle)
    text = dirty(document[at - 3000 : at + 3000], example.needle)
    prompt = Prompt.from_document(text, example.question, pair.target.template, needle=example.needle)
    return pair.run(prompt, OPTIONS, full=False)


def test_a_run_goes_on_and_says_how_many(result: RunResult) -> None:
    _, example = sample()
    assert result.answer.trace.facts["dropped"] == [LINE], "the drafter has a token for each"
    assert summary(result, {})["dropped"] == [LINE]
    assert all(value in result.answer.text for value in example.answers)
    assert result.needle_recall == 1
    spans = result.prompt.bytes
    np.testing.assert_array_equal(spans[1:, 0], spans[:-1, 1])
    assert result.scores is not None
    assert np.isfinite(result.scores).all()


def test_it_is_printed_and_answered_by_the_server(result: RunResult, capsys: pytest.CaptureFixture[str]) -> None:
    print_outcome(Console(width=200), summary(result, {"trace": embedded("target")}), result)
    assert f"Dropped  {LINE}" in capsys.readouterr().out
    assert usage(result, RequestStats(), OPTIONS)["sp"]["dropped"] == [LINE]


def test_text_that_is_encoded_again_drops_them_again(pair: Pipeline, result: RunResult) -> None:
    options = replace(OPTIONS, positions="contiguous", mapping="text_rejoin")
    again = pair.run(result.prompt.prompt, options, full=False)
    assert again.answer.text == result.answer.text
    assert again.answer.trace.facts["dropped"] == [LINE]


def test_a_conversation_tells_of_what_is_new(pair: Pipeline) -> None:
    talk, said = Conversation(pair, replace(OPTIONS, max_new_tokens=2)), [Turn("user", "A log: \x04\x1d\x04. What?")]
    first = talk.answer(prompt_of(said, pair.target))
    assert first.trace.facts["dropped"] == [LINE]
    said += [Turn("assistant", first.answer.text), Turn("user", "And more?")]
    assert "dropped" not in talk.answer(prompt_of(said, pair.target)).trace.facts
    said += [Turn("assistant", ""), Turn("user", "One\x1d.")]
    assert talk.answer(prompt_of(said, pair.target)).trace.facts["dropped"] == [
        "target: 1 byte left out, which its vocabulary has no token for (0x1d)"
    ]
