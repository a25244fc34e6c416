"""Text of many bytes a letter through a pair: what the target reads is text that the prompt had, letter by letter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sp.prompt import Prompt, Span, TokenisedPrompt
from sp.scoring import SCORERS
from sp.selection import SELECTORS
from sp.session import Conversation, ConversationOptions, Pipeline, RunOptions, Scored, embedded, load
from sp.session.compress import compress

TEXT = "".join(f"第{number}章的秘密🙂數字是{number * 7919}。naïve Zürich\n" for number in range(60))
QUESTION = "第七章的秘密數字是什麼？"


@pytest.fixture(scope="module", params=["bytes alike", "other vocabulary"])
def pair(request: pytest.FixtureRequest, retriever_target: Path, retriever_drafter: Path) -> Pipeline:
    drafter = retriever_drafter if request.param == "bytes alike" else embedded("drafter")
    return Pipeline(load(retriever_target, device="cpu"), load(drafter, extrapolate=True, device="cpu"))


@pytest.fixture(scope="module")
def prompt(pair: Pipeline) -> TokenisedPrompt:
    """The document and its question, in tokens of the target."""
    return pair.tokenise(Prompt.from_document(TEXT, QUESTION, pair.target.template))


@pytest.fixture(scope="module")
def scored(pair: Pipeline, prompt: TokenisedPrompt) -> dict[str, Scored]:
    """What scorers say of it, by their names; all selectors choose by that."""
    names = "random", "bm25", "tail"
    return {name: pair.score(prompt, RunOptions(scorer=SCORERS.build(name))) for name in names}


def whole(prompt: TokenisedPrompt, kept: np.ndarray) -> bool:
    """Whether every run of kept tokens is text, in letters that the prompt has there."""
    raw, edges = prompt.prompt.text.encode(), np.flatnonzero(np.diff(np.concatenate([[False], kept, [False]])))
    for first, end in edges.reshape(-1, 2):
        try:
            raw[prompt.bytes[first, 0] : prompt.bytes[end - 1, 1]].decode()
        except UnicodeDecodeError:
            return False
    return True


@pytest.mark.parametrize("name", list(SELECTORS))
def test_what_is_kept_of_a_document(
    pair: Pipeline, prompt: TokenisedPrompt, scored: dict[str, Scored], name: str
) -> None:
    assert len(prompt) > 1.5 * len(prompt.prompt.text), "letters are torn"
    options, tokenizer = RunOptions(keep_ratio=0.2, selector=SELECTORS.build(name)), pair.target.tokenizer
    for found in scored.values():
        _, selection = pair.select(found, prompt, options)
        assert whole(prompt, selection.selected)
        for mapping in ("byte_span", "text_rejoin"):
            place = "original" if mapping == "byte_span" else "contiguous"
            read = compress(prompt, selection.selected, tokenizer, place, mapping)  # type: ignore[arg-type]
            assert "\ufffd" not in tokenizer.decode(read.ids)
        _, larger = pair.select(found, prompt, RunOptions(keep_ratio=0.5, selector=options.selector))
        assert larger.selected[selection.selected].all()


def test_what_a_conversation_keeps_and_recalls(pair: Pipeline) -> None:
    options = RunOptions(
        keep_ratio=0.2, scorer=SCORERS.build("random"), compress="always", max_new_tokens=4,
        selector=SELECTORS.build("top_tokens", {"sink": 0, "tail": 0}),
    )  # fmt: skip
    talk, recalled = Conversation(pair, options, ConversationOptions(recall="append")), 0
    texts = [TEXT[: 300 * turn] for turn in (1, 2, 3)]
    texts.append(texts[-1].replace("第3", "籬3"))  # an edit inside a letter: both begin with the same byte
    for text in texts:
        end, size = len(text.encode()), len(f"{text}{QUESTION}".encode())
        prompt = Prompt(text + QUESTION, tuple(Span(kind, end, size) for kind in ("protected", "question")))
        result = talk.answer(prompt)
        assert whole(result.prompt, result.present)
        assert 0 < result.usage.kept < result.usage.new
        recalled += result.usage.recalled
    assert recalled
