"""What a notebook shows of a run: escaped, bounded, the hottest tokens hot, and what matters always there."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from contrast import contrast

import sp
from sp.prompt import Prompt, Span, TokenisedPrompt
from sp.prompt.heat import STYLE, as_heat, heat_levels


class Seen(HTMLParser):
    """Tags, and text with the class it stands in."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.parts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open.append(dict(attrs).get("class") or tag)

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.parts.append((self.open[-1], data))

    @property
    def text(self) -> str:
        return "".join(data for name, data in self.parts if re.search(r" h\d$", name))


def split(text: str, *spans: Span, size: int = 4) -> TokenisedPrompt:
    """Tokens of `size` bytes."""
    starts = np.arange(0, len(text.encode()), size)
    ends = np.append(starts[1:], len(text.encode()))
    return TokenisedPrompt(Prompt(text, spans), np.arange(len(starts)), np.stack([starts, ends], axis=1))


HOSTILE = "</pre><script>alert(1)</script>&amp;\"'<img src=x onerror=y>" * 3


def test_text_of_a_prompt_is_only_text() -> None:
    prompt = split(HOSTILE)
    kept = np.arange(len(prompt)) % 3 == 0
    seen = Seen(as_heat(prompt, kept, np.random.default_rng(0).random(len(prompt)), (HOSTILE,)))
    assert seen.tags == {"style", "div", "pre", "span"}
    assert seen.text == HOSTILE
    assert "".join(data for name, data in seen.parts if name == "div") == HOSTILE


def test_kept_dropped_question_and_needle_stand_in_their_classes() -> None:
    text = "aaaabbbbccccddddeeeeffff"
    prompt = split(text, Span("needle", 4, 12), Span("question", 16, 20))
    kept = np.array([True, True, False, False, True, False])
    seen = Seen(as_heat(prompt, kept, None, ()))
    found = [(name.split()[0], data) for name, data in seen.parts if name not in ("style",)]
    assert found == [
        *(("kept", "aaaa"), ("needle", "bbbb"), ("lost", "cccc"), ("dropped", "dddd"), ("question", "eeee")),
        ("dropped", "ffff"),
    ]


def test_levels_are_ranks_whatever_the_scores_are() -> None:
    rng = np.random.default_rng(1)
    for scores in (rng.random(400), np.exp(20 * rng.random(400)), rng.integers(0, 5, 400).astype(float)):
        share = [float((scores < one).mean()) for one in scores]
        wanted = [sum(each >= bound for bound in (0.5, 0.8, 0.95, 0.99)) for each in share]
        assert heat_levels(scores, 400).tolist() == wanted
    assert heat_levels(np.array([np.nan, 1.0, np.inf]), 3).tolist() == [0, 0, 1]
    assert not heat_levels(np.ones(50), 50).any()


@pytest.mark.parametrize("text", ["<&\"'" * 20_000, "word " * 30_000, "é€" * 30_000])
def test_a_page_is_bounded_and_shows_what_matters(text: str) -> None:
    size = len(text.encode())
    prompt = split(text, Span("needle", size // 2, size // 2 + 40), Span("question", size - 60, size), size=1)
    kept = np.zeros(len(prompt), bool)
    kept[::2] = True
    page = as_heat(prompt, kept, np.random.default_rng(2).random(len(prompt)), ())
    assert len(page.encode()) < 400_000
    seen = Seen(page)
    names = {name.split()[0] for name, _ in seen.parts}
    assert {"needle", "lost", "question", "kept", "gap"} <= names
    told = sum(int(data.split()[0].strip("[").replace(",", "")) for name, data in seen.parts if name == "gap")
    assert 0 < len(prompt) - told < 6000


def test_every_ink_can_be_read_on_every_heat() -> None:
    inks = re.findall(r"[ ;{]color: #([0-9a-f]+)", STYLE)
    papers = re.findall(r"background: #([0-9a-f]+)", STYLE)
    assert (len(inks), len(papers)) == (3, 5)
    for ink in inks:
        for paper in papers:
            assert contrast(ink, paper) >= 4.5, (ink, paper)


def test_runs_and_turns_show_it() -> None:
    pair = sp.load(device="cpu")
    text = "The sky is blue. The <grass> is green. " * 4 + "\n\nWhat is green?"
    options: Any = sp.RunOptions(keep_ratio=0.5, scorer="lexical", compress="always", max_new_tokens=2)
    result = pair.run(text, options, full=False)
    shown = Seen(result._repr_html_())
    assert shown.text == text
    assert repr(result) in "".join(data for _, data in shown.parts)
    assert result.selection is not None
    assert sum(len(data) for name, data in shown.parts if name.startswith("dropped")) > 0
    whole = Seen(pair.run(text, sp.RunOptions(compress="off", max_new_tokens=2))._repr_html_())
    assert not any(name.startswith("dropped") for name, _ in whole.parts)
    turn = sp.Conversation(pair, options).ask([{"role": "user", "content": text}])
    assert text in Seen(turn._repr_html_()).text


def test_the_bytes_of_a_character_that_is_cut_are_shown() -> None:
    prompt = split("é" * 8, size=3)
    page = as_heat(prompt, np.arange(len(prompt)) % 2 == 0, None, ())
    assert "\ufffd" in Seen(page).text


def test_a_result_may_have_scores_of_no_order() -> None:
    page = as_heat(split("abcdefgh" * 3), None, np.full(6, np.nan), ())
    assert (
        page.removeprefix(STYLE)
        == f'<div class="sp-heat"><pre><span class="kept h0">{"abcdefgh" * 3}</span></pre></div>'
    )
