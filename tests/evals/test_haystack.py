"""Documents come out at their length, with every needle once and where it belongs, the same every time."""

from __future__ import annotations

import random
import re
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.errors import ConfigError
from sp.evals.text.filler import JITTER, NOISE, filler, haystack, largest_fit, sample_paragraphs
from sp.studies.sample import sample

TOKEN = re.compile(r" ?\w+| ?[^\w\s]\n*|\s")


def count(text: str) -> int:
    """Words with the space before them and signs with the line feeds behind them, as Qwen's tokenizers split."""
    return len(TOKEN.findall(text))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["grammar", "noise", "sample"]),
    st.integers(200, 1500),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
    st.integers(0, 10**6),
)
def test_length_depth_and_order(kind: str, room: int, depths: list[float], seed: int) -> None:
    needles = [f"The code for key {number} is {number}{number}." for number in range(len(depths))]
    rng = random.Random(seed)
    found = haystack(filler(kind, rng), needles, depths, room, count, rng, header="Read this.\n")
    waste = (count(f"{NOISE}\n") if kind == "noise" else 12) + len(needles)
    assert room - waste <= count(found.text) <= room
    assert found.text.startswith("Read this.\n")
    places = [found.text.index(needle) for needle in needles]
    assert all(found.text.count(needle) == 1 for needle in needles)
    sentence, own = 60, sum(map(count, needles)) + 3
    for place, start, depth in zip(places, found.starts, depths, strict=True):
        assert abs(count(found.text[:place]) - start) <= 3
        assert abs(start - depth * found.tokens) <= JITTER / 2 + sentence / 2 + own
    assert sorted(range(len(depths)), key=lambda i: depths[i]) == sorted(range(len(depths)), key=lambda i: places[i])


def test_needles_fall_anywhere_in_a_block() -> None:
    """RULER's repeated line has 27 tokens here; without jitter a depth would meet the same few offsets."""
    offsets = set()
    for seed in range(40):
        rng = random.Random(seed)
        found = haystack(filler("grammar", rng), ["The code is 7."], [0.5], 900, count, rng)
        offsets.add(found.starts[0] % 32)
    assert len(offsets) > 15


def test_the_same_seed_draws_the_same_text() -> None:
    first, again = (
        haystack(filler("grammar", rng), ["A needle."], [0.3], 400, count, rng)
        for rng in (random.Random(5), random.Random(5))
    )
    assert first == again


def test_lines_stay_lines_and_sentences_stay_in_their_text() -> None:
    rng = random.Random(1)
    lines = haystack(filler("noise", rng), ["A needle."], [0.5], 400, count, rng).text.split("\n")
    assert set(lines) == {NOISE, "A needle."}
    rng = random.Random(2)
    inside = [haystack(filler("grammar", rng), ["A needle."], [0.5], 400, count, rng).text for _ in range(8)]
    assert any(". A needle. " in text for text in inside)


def test_the_sample_filler_holds_no_needle_and_does_not_end() -> None:
    stream = list(islice(filler("sample", random.Random(0)), 3000))
    evidence = sample()[1].needle
    assert not any(evidence.split(",")[0] in sentence.text for sentence in stream)
    assert sum(map(len, sample_paragraphs())) < 3000


def test_too_little_room() -> None:
    rng = random.Random(0)
    with pytest.raises(ConfigError, match="the needles take"):
        haystack(filler("noise", rng), ["word " * 50], [0.5], 20, count, rng)
    with pytest.raises(ConfigError, match="longer prompt"):
        largest_fit(lambda size: "word " * (size + 30), 20, count, 5)


@given(st.integers(1, 400), st.integers(1, 500))
def test_largest_fit_wastes_at_most_a_hundredth(room: int, guess: int) -> None:
    text = largest_fit(lambda size: " ".join(["word"] * size), room, count, guess)
    assert room - max(1, room // 100) <= count(text) <= room
