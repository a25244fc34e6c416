"""Marks of what was left out: what they count, where they stand, and that the target reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from retriever_files import text_task

from sp.chat import Segment
from sp.prompt import Prompt, Span, TokenisedPrompt
from sp.selection import SELECTORS
from sp.session import Pipeline, RunOptions, load
from sp.session.compress import Omitted, SelectionDetails, compress, rejoin


@pytest.fixture(scope="module")
def pair(retriever_target: Path, retriever_drafter: Path) -> Pipeline:
    return Pipeline(load(retriever_target, device="cpu"), load(retriever_drafter, extrapolate=True, device="cpu"))


TEXT = (
    "one = 1\ntwo = 2\n\nthree = 3\n" + '{"a": [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n' + "It rains. It is late. Nobody comes. "
)


@pytest.mark.parametrize(
    ("gap", "mark"),
    [
        ("two = 2\n\nthree = 3\n", "[... 2 lines ...]\n"),
        ("three = 3\n", ""),  # the mark would be longer
        ('{"a": [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n', "[... 1 line ...]\n"),
        ("3, 4, 5, 6, 7, 8, 9", ""),  # inside of a JSON value
        (", 6, 7, 8, 9]}\nIt rains. It is late", ""),
        ("e = 1\ntwo = 2\n\nthree = 3", "[... 24 characters ...]"),
        (" It is late. Nobody comes.", " [... 25 characters ...]"),
    ],
)
def test_a_mark_counts_lines_or_characters(gap: str, mark: str) -> None:
    start = TEXT.index(gap)
    assert Omitted(Prompt(TEXT)).mark(start, start + len(gap)) == mark


def test_ends_of_messages_are_ends_of_lines_and_quoted_text_has_no_marks() -> None:
    text = "<t>first line of it\nsecond line of it</t>"
    said = 3, len(text) - 4
    spans = Span("protected", 0, said[0]), Span("protected", said[1], len(text))
    assert Omitted(Prompt(text, spans, None, (Segment("tool", *said),))).mark(*said) == "[... 2 lines ...]"
    assert Omitted(Prompt(text, spans, None, (Segment("tool", *said, 0, True),))).mark(*said) == ""


def tokenised(pair: Pipeline, text: str, *left_out: str) -> tuple[TokenisedPrompt, np.ndarray]:
    """A document and what is kept of it: all tokens that share no byte with these pieces."""
    prompt = Prompt.from_document(text, "Who is qtx?", pair.target.template)
    made, raw = prompt.tokenise(pair.target.tokenizer), prompt.text.encode()
    kept = np.ones(len(made), bool)
    for piece in left_out:
        start = raw.index(piece.encode())
        kept &= (made.bytes[:, 1] <= start) | (made.bytes[:, 0] >= start + len(piece.encode()))
    return made, kept


def test_marks_stand_in_the_gaps_at_positions_of_what_is_left_out(pair: Pipeline) -> None:
    lines = [f"value {number} = {number * 7}\n" for number in range(30)]
    made, kept = tokenised(pair, "".join(lines), "".join(lines[3:12]), "".join(lines[20:22]))
    reader = pair.target.tokenizer
    plain = compress(made, kept, reader, "original", "byte_span")
    marked = compress(made, kept, reader, "original", "byte_span", SelectionDetails(mark=True))
    assert reader.decode(marked.ids).count("[... 9 lines ...]\n") == 1
    assert reader.decode(marked.ids).replace("[... 9 lines ...]\n", "").replace(
        "[... 2 lines ...]\n", ""
    ) == reader.decode(plain.ids)
    assert (np.diff(marked.positions) > 0).all()
    added = ~np.isin(marked.positions, plain.positions)
    assert added.sum() == len(marked.ids) - len(plain.ids)
    assert not kept[marked.positions[added]].any()
    assert marked.next_position == plain.next_position == len(made)
    contiguous = compress(made, kept, reader, "contiguous", "byte_span", SelectionDetails(mark=True))
    np.testing.assert_array_equal(contiguous.positions, np.arange(len(marked.ids)))
    np.testing.assert_array_equal(contiguous.ids, marked.ids)
    assert rejoin(made, kept, SelectionDetails(mark=True, whole=True)).text == reader.decode(marked.ids)


def test_a_mark_in_text_that_is_encoded_anew_is_plain(pair: Pipeline) -> None:
    made, kept = tokenised(
        pair,
        "first it rains all day. Then <|im_end|> it is late, and so on. The end.",
        " Then <|im_end|> it is late, and so on.",
    )
    joined = rejoin(made, kept, SelectionDetails(mark=True, whole=True))
    at = joined.text.index(" [... 38 characters ...]")
    assert any(span.kind == "plain" and span.start <= at and at + 24 <= span.end for span in joined.spans)


def test_a_token_is_read_in_part_where_its_place_allows(pair: Pipeline) -> None:
    made, kept = tokenised(pair, "alpha beta gamma delta epsilon", " gamma")
    token = int(np.flatnonzero(~kept)[0]) - 1
    start, end = made.bytes[token].tolist()
    raw = made.prompt.text.encode()
    given = compress(
        made,
        kept,
        pair.target.tokenizer,
        "original",
        "byte_span",
        SelectionDetails({token: ((start, end - 1),)}, whole=True),
    )
    text = pair.target.tokenizer.decode(given.ids)
    assert text == rejoin(made, kept, SelectionDetails({token: ((start, end - 1),)}, whole=True)).text
    assert text.startswith(raw[: end - 1].decode())
    assert (np.diff(given.positions) > 0).all()


@pytest.mark.parametrize("mapping", ["byte_span", "text_rejoin"])
def test_a_run_with_marks_answers_and_reads_more(pair: Pipeline, mapping: str) -> None:
    task = text_task(1500, needles=6, seed=9)
    prompt = Prompt.from_document(task.document, task.question, pair.target.template, needle=task.needle)
    positions = "original" if mapping == "byte_span" else "contiguous"
    options = RunOptions(0.3, compress="always", max_new_tokens=6, mapping=mapping, positions=positions)  # type: ignore[arg-type]
    options = replace(options, selector=SELECTORS.build("sentence", {"neighbours": 0, "sink": 4, "tail": 0}))
    plain, marked = (pair.run(prompt, replace(options, mark_omitted=mark), full=False) for mark in (False, True))
    read = [next(s.tokens for s in run.answer.trace.stages if s.name == "target prefill") for run in (plain, marked)]
    assert read[1] > read[0]
    assert plain.selection is not None
    assert marked.selection is not None
    np.testing.assert_array_equal(plain.selection.selected, marked.selection.selected)


@pytest.mark.parametrize("name", ["lines", "json", "segments"])
def test_the_selectors_run_in_the_pipeline(pair: Pipeline, name: str) -> None:
    task = text_task(1500, needles=6, seed=9)
    prompt = Prompt.from_document(task.document, task.question, pair.target.template, needle=task.needle)
    options = RunOptions(0.4, selector=SELECTORS.build(name), compress="always", max_new_tokens=6)
    result = pair.run(prompt, options, full=False)
    assert result.selection is not None
    free = ~result.prompt.mask("protected")
    assert 0 < result.selection.selected[free].sum() <= np.ceil(0.4 * free.sum())
