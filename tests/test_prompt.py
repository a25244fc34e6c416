"""Spans are exact in bytes, and scores cross tokenizers by the bytes they share."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp.chat import Turn, render_located
from sp.errors import PromptError
from sp.gguf import ChatTemplate
from sp.prompt import Prompt, Span, TokenisedPrompt, Transfer, merge_spans, transfer_scores

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def text_of(prompt: Prompt, kind: str) -> list[str]:
    raw = prompt.text.encode()
    return [raw[span.start : span.end].decode() for span in prompt.spans if span.kind == kind]


def test_parts_of_a_chat_prompt_are_located_in_bytes() -> None:
    document = "Grüße. Der Schlüssel ist 42. 漢字 und mehr."
    prompt = Prompt.from_document(
        document, "Wie heißt er?", CHATML, needle="Schlüssel ist 42", answer_prefix=" Er heißt"
    )
    assert prompt.text.endswith("<|im_start|>assistant\n Er heißt")
    assert text_of(prompt, "question") == ["Wie heißt er?"]
    assert text_of(prompt, "needle") == ["Schlüssel ist 42"]
    protected = text_of(prompt, "protected")
    assert protected[0] == "<|im_start|>user\n"
    assert protected[1].startswith("\n\nWie heißt er?<|im_end|>")
    assert protected[0] + document + protected[1] == prompt.text


@pytest.mark.parametrize(
    ("template", "prefix", "last"),
    [
        (CHATML, "", "assistant\n"),
        (CHATML + "<think>\n\n</think>\n\n", "", "sat?"),
        (CHATML + "<think>\n\n</think>\n\n", " It was", " It was"),
        (CHATML + "{# </think> #}", "", "assistant\n"),
    ],
)
def test_what_asks_ends_before_marks_of_thinking(template: str, prefix: str, last: str) -> None:
    prompt = Prompt.from_document("The cat sat.", "Who sat?", template, answer_prefix=prefix)
    raw = prompt.text.encode()
    letters = TokenisedPrompt(prompt, np.arange(len(raw)), np.array([[at, at + 1] for at in range(len(raw))]))
    assert raw[: letters.content_end].decode().endswith(last)


def test_a_question_that_repeats_a_piece_of_the_document_is_still_found_at_the_end() -> None:
    prompt = Prompt.from_document("Who sat? The cat.", "Who sat?", CHATML)
    span = next(span for span in prompt.spans if span.kind == "question")
    assert span.start > prompt.text.index("The cat.")


@pytest.mark.parametrize(
    ("document", "question", "template", "needle", "message"),
    [
        ("", "Who?", None, None, "the prompt is empty"),
        ("  \n ", "Who?", None, None, "the prompt is empty"),
        ("Text.", " ", None, None, "the question is missing"),
        ("Text.", "Who?", None, "absent", "needle is not a part"),
        ("Text.", "Who?", "{{ messages[0].content | upper }}", None, "changes the user's text"),
    ],
)
def test_unusable_prompts(document: str, question: str, template: str | None, needle: str | None, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        Prompt.from_document(document, question, template, needle=needle)


def cuts(draw: st.DrawFn, length: int) -> np.ndarray:
    inner = draw(st.sets(st.integers(1, length - 1), max_size=length - 1)) if length > 1 else set()
    edges = [0, *sorted(inner), length]
    return np.array(list(pairwise(edges)), np.int64)


@given(st.data(), st.integers(1, 60))
def test_transfer_equals_the_brute_force_maximum(data: st.DataObject, length: int) -> None:
    source = data.draw(st.composite(lambda draw: cuts(draw, length))())
    target = data.draw(st.composite(lambda draw: cuts(draw, length))())
    scores = np.random.default_rng(length).standard_normal(len(source)).astype(np.float32)
    want = [max(s for s, (a, b) in zip(scores, source, strict=True) if a < end and b > start) for start, end in target]
    np.testing.assert_array_equal(transfer_scores(scores, source, target), np.array(want, np.float32))


def test_one_transfer_carries_many_scores() -> None:
    """Of a tokenisation whose second token is of no byte."""
    source, target = np.array([[0, 2], [2, 2], [2, 4]]), np.array([[0, 1], [1, 3], [3, 4]])
    transfer = Transfer.between(source, target)
    for scores in ([1, 9, 5], [5, 9, 1]):
        found = np.array(scores, np.float32)
        assert transfer(found).tolist() == [scores[0], 5, scores[2]]
        np.testing.assert_array_equal(transfer(found), transfer_scores(found, source, target))


def test_transfer_to_the_same_tokens_is_the_identity() -> None:
    spans = np.array([[0, 3], [3, 4], [4, 9]])
    scores = np.array([0.5, -1.0, 2.0], np.float32)
    np.testing.assert_array_equal(transfer_scores(scores, spans, spans), scores)


def test_merge_spans_joins_what_touches() -> None:
    spans = np.array([[0, 2], [2, 5], [7, 9], [8, 8], [10, 11]])
    np.testing.assert_array_equal(merge_spans(spans), [[0, 5], [7, 9], [10, 11]])
    assert merge_spans(np.empty((0, 2), np.int64)).shape == (0, 2)


@given(st.lists(st.integers(0, 40), min_size=2, max_size=12), st.integers(0, 40), st.integers(1, 40))
def test_a_mask_marks_every_token_that_shares_a_byte(cuts: list[int], start: int, length: int) -> None:
    tokens = np.array(list(pairwise(sorted(cuts))))
    prompt = TokenisedPrompt(Prompt("x" * 80, (Span("needle", start, start + length),)), np.arange(len(tokens)), tokens)
    expected = [first < start + length and last > start for first, last in tokens.tolist()]
    assert prompt.mask("needle").tolist() == expected


def test_a_needle_stands_where_it_is_said_to() -> None:
    document = "  Ürn. Key is 7. Key is 7. End. "
    at = document.rindex("Key")
    prompt = Prompt.from_document(document, "Q?", None, needle=["Key is 7."], needle_at=[at])
    (span,) = (span for span in prompt.spans if span.kind == "needle")
    assert span.start == len(document[2:at].encode())
    assert prompt.text.encode()[span.start : span.end] == b"Key is 7."
    with pytest.raises(PromptError, match="not a part"):
        Prompt.from_document(document, "Q?", None, needle=["Key is 7."], needle_at=[at + 1])


def test_a_conversation_may_lose_all_but_its_markup_and_the_last_request() -> None:
    template = ChatTemplate(
        "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    turns = [Turn("system", "Be brief."), Turn("user", "Wörds one"), Turn("assistant", "ah ü"), Turn("user", "Which? ")]
    found = render_located(template, turns, {})
    prompt = Prompt.from_chat(found, turns, template, needle=["ah ü"])
    raw = prompt.text.encode()
    assert prompt.text == "<system>Be brief.</><user>Wörds one</><assistant>ah ü</><user>Which?</><assistant>"
    left = bytearray(raw)
    for span in prompt.spans:
        if span.kind == "protected":
            left[span.start : span.end] = b"." * (span.end - span.start)
    assert bytes(left).decode().strip(".") == "Wörds one" + "." * len("</><assistant>") + "ah ü"
    says = {kind: raw[s.start : s.end].decode() for s in prompt.spans if (kind := s.kind) in ("question", "needle")}
    assert says == {"question": "Which?", "needle": "ah ü"}
    with pytest.raises(PromptError, match="not a part"):
        Prompt.from_chat(found, turns, template, needle=["oh"])
