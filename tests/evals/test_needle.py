"""Needles: found by string search, worded as asked, nothing in common with the question where that is forbidden."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.errors import ConfigError
from sp.evals import TASKS, Example
from sp.evals.tasks.needle import shared_ngrams
from sp.evals.text.tables import ADJECTIVES, NOUNS

MODES = ("needle", "needle_multikey", "needle_multivalue", "needle_multiquery")
WORDS = re.compile(r"\w+|[^\w\s]")


def count(text: str) -> int:
    return len(WORDS.findall(text))


def make(name: str, index: int = 0, tokens: int = 500, **options: object) -> Example:
    return TASKS.build(name, options).example(index, tokens, count)


def plain_runs(text: str, n: int) -> set[str]:
    """Runs of n words, the slow and obvious way."""
    words = re.sub(r"[^\w\s]|_", " ", text.lower()).split()
    return {" ".join(words[i : i + n]) for i in range(len(words) - n + 1)}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODES), st.integers(1, 4), st.sampled_from(["number", "uuid"]), st.integers(0, 10**6))
def test_question_and_needle_share_nothing_but_the_key(name: str, n: int, value: str, index: int) -> None:
    example = make(name, index, no_shared_ngrams=n, value=value)
    for key in example.facts["keys"]:
        for needle in example.needles:
            if key in needle:
                cut = needle.replace(key, " KEYKEY ")
                for asked in (example.question, example.answer_prefix):
                    other = asked.replace(key, " KEYKEY ")
                    common = plain_runs(other, n) & plain_runs(cut, n)
                    assert common <= {"keykey"}, (example.question, needle)


def test_without_the_option_they_do_share_words() -> None:
    assert any(
        shared_ngrams(one.question, one.needles[0], one.facts["keys"][0], 3)
        for one in (make("needle", index) for index in range(20))
    )


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("filler", ["grammar", "noise", "needles"])
def test_a_search_for_the_key_finds_the_answers(name: str, filler: str) -> None:
    for index in range(3):
        example = make(name, index, filler=filler, phrasing="ruler", tokens=800)
        assert count(example.document) + count(example.question) + count(example.answer_prefix) <= 800
        found = []
        for key in example.facts["keys"]:
            said = re.findall(rf"for {re.escape(key)} is: (\S+)\.", example.document)
            assert key in example.question
            found += said
        assert sorted(found) == sorted(example.answers)
        assert all(example.document.count(needle) == 1 for needle in example.needles)
        assert not any(answer in example.question + example.answer_prefix for answer in example.answers)


def test_examples_are_reproducible_and_differ() -> None:
    assert make("needle", 3) == make("needle", 3)
    ids = {make("needle", 3).id, make("needle", 4).id, make("needle", 3, depth=0.5).id, make("needle", 3, seed=1).id}
    assert len(ids) == 4


def test_depth_is_where_it_was_asked_for() -> None:
    for depth in (0.0, 0.25, 1.0):
        example = make("needle", depth=depth, tokens=3000)
        assert example.facts["depth"] == pytest.approx(depth, abs=0.03)


def test_distractors_share_half_a_key() -> None:
    example = make("needle_multikey", 1, phrasing="ruler")
    [key] = example.facts["keys"]
    others = set(re.findall(r"for (\w+-\w+) is:", example.document)) - {key}
    assert len(others) == 3
    assert any(set(other.split("-")) & set(key.split("-")) for other in others)


def test_keys_were_never_seen_in_training() -> None:
    path = Path(__file__).parents[2] / "experiments" / "instrument" / "words.py"
    spec = importlib.util.spec_from_file_location("instrument_words", path)
    assert spec
    assert spec.loader
    trained = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trained)
    assert not set(ADJECTIVES) & set(trained.split_words(trained.ADJECTIVES)[0])
    assert not set(NOUNS) & set(trained.split_words(trained.NOUNS)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 1.5}, "depth must be from 0 to 1"),
        ({"distractors": -1}, "at least 0"),
        ({"filler": "gramar"}, "did you mean 'grammar'"),
        ({"no_shared_ngrams": 1, "answer_prefix": True}, "raise no_shared_ngrams"),
        ({"no_shared_ngrams": 2, "phrasing": "ruler"}, "RULER's question shares"),
        ({"dept": 1}, "did you mean 'depth'"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TASKS.build("needle", options)


def test_a_length_without_room() -> None:
    with pytest.raises(ConfigError, match="use longer prompts"):
        make("needle", tokens=30)
