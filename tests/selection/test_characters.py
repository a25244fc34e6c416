"""No selector keeps a part of a character: random text of many bytes a letter, in tokens that part letters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_cases import DOCUMENTED, MATRIX, WITH_CONSTRAINTS
from selection_reference import characters_of

from sp.prompt import Prompt, Span
from sp.selection import SELECTORS, Selection, SelectionRequest, Selector

LETTERS = "a é\n.中文字。國語🙂𝄞ß"


def request_of(seed: int, letters: int, longest: int, keep: float, share: float) -> SelectionRequest:
    """Random letters in tokens of up to `longest` bytes."""
    rng = np.random.default_rng(seed)
    text = "".join(rng.choice(list(LETTERS), letters)).encode()
    ends = np.unique(np.append(np.cumsum(rng.integers(1, longest + 1, len(text))), len(text)))
    ends = ends[ends <= len(text)]
    spans = np.stack([np.append(0, ends[:-1]), ends], 1)
    scores = rng.integers(0, 1000, len(spans)).astype(np.float32)
    return SelectionRequest(scores, rng.random(len(spans)) < share, keep, text, spans)


REQUESTS = st.builds(
    request_of,
    seed=st.integers(0, 2**32 - 1),
    letters=st.integers(1, 300),
    longest=st.integers(1, 4),
    keep=st.floats(0.01, 1.0),
    share=st.sampled_from([0.0, 0.01, 0.1]),
)


def torn(kept: np.ndarray, request: SelectionRequest) -> list[int]:
    """Kept tokens without the rest of their characters."""
    there = set(kept.nonzero()[0].tolist())
    return [token for token, group in enumerate(characters_of(request)) if token in there and not group <= there]


@pytest.mark.parametrize(("name", "options"), MATRIX, ids=str)
@settings(max_examples=6, deadline=None)
@given(request=REQUESTS, more=st.floats(1.0, 4.0))
def test_characters_stand_or_fall_together(name: str, options: dict, request: SelectionRequest, more: float) -> None:
    selector = SELECTORS.build(name, options)
    select = selector.select if name in WITH_CONSTRAINTS else selector  # of others the call leaves out torn characters
    small = select(request)
    large = select(replace(request, keep_ratio=min(1.0, request.keep_ratio * more)))
    for selection in (small, large):
        assert torn(selection.selected, request) == torn(selection.forced, request) == []
        assert selection.selected[request.protected].all()
    protected = int(request.protected.sum())
    assert small.selected.sum() <= protected + np.ceil(round(request.keep_ratio * (len(small.selected) - protected), 6))
    assert large.selected[small.selected].all()
    assert select(replace(request, keep_ratio=1.0)).selected.all()
    np.testing.assert_array_equal(selector(request).selected, small.selected)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_little_is_lost_for_it(name: str) -> None:
    """All selectors that go as far as the budget still do, where each letter is three tokens."""
    text = ("中文字\n" * 90).encode()
    spans = np.stack([np.arange(900), np.arange(1, 901)], 1)
    scores = np.random.default_rng(0).random(900).astype(np.float32)
    selection = SELECTORS.build(name).select(SelectionRequest(scores, np.zeros(900, bool), 0.2, text, spans))
    assert selection.selected.sum() > (100 if name not in ("zscore", "adaptive") else 0)


@dataclass(frozen=True)
class EveryOther(Selector):
    """One from outside that knows nothing of characters."""

    def select(self, request: SelectionRequest) -> Selection:
        kept = request.protected | (np.arange(len(request.scores)) % 2 == 0)
        return Selection(kept, kept, request.scores, np.arange(len(kept) + 1), byte_ranges={0: ((0, 1),)})


def test_a_selector_from_outside_is_held_to_it() -> None:
    spans = np.array([[0, 1], [1, 2], [2, 4], [4, 5], [5, 6]])
    request = SelectionRequest(np.zeros(5, np.float32), np.zeros(5, bool), 0.5, "a中b".encode() + b"c", spans)
    found = EveryOther()(request)
    assert found.selected.tolist() == found.forced.tolist() == [True, False, False, False, True]
    assert EveryOther()(replace(request, text=b"abcdef")).selected.sum() == 3


def test_protected_text_brings_the_rest_of_its_characters() -> None:
    """A token that ends the document and begins the question holds parts of two letters."""
    prompt = Prompt("中文\n字", (Span("protected", 3, 6),))
    tokenised = prompt.tokenise(Spelled([1, 1, 3, 1, 1, 3]))
    assert tokenised.mask("protected").tolist() == [True, True, True, True, False, False]
    assert tokenised.mask("question").sum() == 0


class Spelled:
    """A vocabulary whose tokens have so many bytes, one after the other."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def encode(self, text: str, plain: object = (), **_: object) -> Spelled:
        ends = np.cumsum(self.sizes)
        assert ends[-1] == len(text.encode())
        self.ids, self.spans = np.arange(len(ends)), np.stack([np.append(0, ends[:-1]), ends], 1)
        self.dropped = np.zeros(0, np.int64)
        return self


def test_a_letter_torn_at_an_end_leaves_its_room_to_no_choice() -> None:
    """Or a larger budget, which holds the letter, would leave the choices less."""
    selector = SELECTORS.build("top_tokens", {"neighbours": 2, "sink": 40, "tail": 9})
    request = request_of(0, 31, 3, 0.25, 0.0)
    small, large = (selector.select(replace(request, keep_ratio=keep)) for keep in (0.25, 0.375))
    assert large.selected[small.selected].all()
