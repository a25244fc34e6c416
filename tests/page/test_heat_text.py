"""The text of a prompt on a page: all of it, whole characters, every kind in its class, and never too much of it."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from markup_read import HOSTILE, Read

from sp.page.heat import BINS, MOST_RUNS, HeatMap, overview
from sp.prompt import Prompt, Span, TokenisedPrompt


def split(text: str, *spans: Span, size: int = 3) -> TokenisedPrompt:
    """Tokens of `size` bytes, characters cut or not."""
    starts = np.arange(0, len(text.encode()), size)
    ends = np.append(starts[1:], len(text.encode()))
    return TokenisedPrompt(Prompt(text, spans), np.arange(len(starts)), np.stack([starts, ends], axis=1))


@pytest.mark.parametrize("text", [HOSTILE * 40, "Grüße 👩‍🚀 aus 東京\n" * 300, "no line ends here " * 200, "\n" * 5000])
def test_all_text_is_there_as_it_was(text: str) -> None:
    prompt, rng = split(text), np.random.default_rng(0)
    heated = HeatMap.of(prompt, rng.random(len(prompt)) < 0.5, rng.random(len(prompt)))
    seen = Read(heated.markup())
    assert seen.text == text
    assert {name for name, _ in seen.tags} == {"div", "span", "i"}


def test_kinds_stand_in_their_classes_and_places_have_names() -> None:
    text = "aaabbbcccdddeeefffggg"
    prompt = split(text, Span("needle", 3, 9), Span("needle", 9, 12), Span("question", 15, 18))
    kept = np.array([True, True, False, True, False, True, False])
    heated = HeatMap.of(prompt, kept, np.array([0, 0, 0, 0, 0, 0, 9.0]))
    pieces = re.findall(r'<span class="(\w+)"(?: id="([\w-]+)")?(?: data-left="\d+")?>(.*?)</span>', heated.markup())
    assert pieces == [
        ("kept", "", "aaa"), ("needle", "needle-1", "bbb"), ("lost", "", "ccc"), ("needle", "needle-2", "ddd"),
        ("dropped", "", "eee"), ("question", "question-1", "fff"), ("dropped", "", '<i class="h2">ggg</i>'),
    ]  # fmt: skip
    assert [(each.name, each.start, each.end, each.kept_share) for each in heated.places()] == [
        ("needle-1", 1, 3, 0.5), ("needle-2", 3, 4, 1.0), ("question-1", 5, 6, 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize("kept", ["chunks", "every other"])
def test_many_tokens_make_a_page_that_a_browser_holds(kept: str) -> None:
    text = "seven words of a story, and on\n" * (16_384 if kept == "chunks" else 4096)
    prompt, rng = split(text, Span("needle", 1000, 1030), size=4), np.random.default_rng(1)
    assert len(prompt) > (120_000 if kept == "chunks" else MOST_RUNS)
    chosen = np.arange(len(prompt)) // 32 % 10 == 0 if kept == "chunks" else np.arange(len(prompt)) % 2 == 0
    begun = time.perf_counter()
    heated = HeatMap.of(prompt, chosen, rng.random(len(prompt)))
    made, picture = heated.markup(), overview(heated)
    assert time.perf_counter() - begun < 3
    assert Read(made).text == text
    runs = made.count("<span") + made.count("<i ")
    assert runs < (2.2 * MOST_RUNS if kept == "chunks" else 1.1 * len(prompt))
    assert len(made) < len(text) + 60 * runs
    assert picture.count("<rect") < 2 * BINS + 10


def test_without_scores_and_selection_everything_is_kept_and_nothing_hot() -> None:
    heated = HeatMap.of(split("all of this text"), None, None)
    assert Read(heated.markup()).text == "all of this text"
    assert "dropped" not in heated.markup()
    assert "<i" not in heated.markup()
    assert overview(heated).count('class="share"') == 1
