"""Ways to judge answers against what their benchmarks say of them, by hand and by slower formulas."""

from __future__ import annotations

import re
import string
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp.errors import ConfigError
from sp.evals import Example, matches
from sp.evals.matches import MATCHES


def squad_words(text: str) -> list[str]:
    """Lower case, no punctuation, no articles, in the order of the script of SQuAD, word by word."""
    kept = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
    return [word for word in re.sub(r"\b(a|an|the)\b", " ", kept).split() if word]


def squad_f1(said: list[str], asked: list[str]) -> Fraction:
    """By precision and recall; words that both have are struck out one by one."""
    if not said or not asked:
        return Fraction(said == asked)
    left = list(asked)
    shared = sum(1 for word in said if word in left and not left.remove(word))  # type: ignore[func-returns-value]
    if not shared:
        return Fraction(0)
    precision, recall = Fraction(shared, len(said)), Fraction(shared, len(asked))
    return 2 * precision * recall / (precision + recall)


PHRASES = st.lists(st.sampled_from(["The", "a", "red", "Fox", "fox's", "the,", "--", "7"]), max_size=6).map(" ".join)


@given(PHRASES, st.lists(PHRASES, min_size=1, max_size=3))
def test_squad(said: str, answers: list[str]) -> None:
    best = max(squad_f1(squad_words(said), squad_words(one)) for one in answers)
    assert MATCHES["squad_f1"](said, answers) == pytest.approx(float(best))
    assert MATCHES["squad_exact"](said, answers) == any(squad_words(said) == squad_words(one) for one in answers)


@pytest.mark.parametrize(
    ("match", "said", "answers", "score"),
    [
        ("any_words", "I do not know", ["no", "yes"], 0),
        ("any_words", "At NOON.", ["midnight", "noon"], 1),
        ("any_words", "pass --keep here", ["--keep"], 1),
        ("any_words", "it is 30", ["3"], 0),
        ("all_words", "two\n miles", ["two miles", "three"], 1 / 2),
        ("squad_exact", "The Eiffel Tower!", ["eiffel tower"], 1),
        ("squad_exact", "Eiffel Tower in Paris", ["eiffel tower"], 0),
        ("squad_f1", "Eiffel Tower in Paris", ["eiffel tower", "Rome"], 2 * (2 / 4) * 1 / (2 / 4 + 1)),
        ("squad_f1", "red red fox", ["red fox fox"], 2 / 3),
        ("regex", "It was\n42 degrees.", [r"\b4\d\b"], 1),
        ("regex", "forty-two", [r"\d", "^forty-(one|two)$"], 1),
        ("regex", "Forty", ["forty"], 0),
        ("regex", "Forty", ["(?i)forty"], 1),
        ("choice", "The correct answer is (B).", ["B"], 1),
        ("choice", "The correct answer is B", ["B"], 1),
        ("choice", "The **correct** answer is A. The correct answer is (B)", ["B"], 1),  # brackets are looked for first
        ("choice", "the correct answer is (B)", ["B"], 0),
        ("choice", "(B)", ["B"], 0),
        ("mrcr", "x9abcd", ["x9", "bcde"], 0.75),  # the example of difflib's documentation
        ("mrcr", "x9tide", ["x9", "diet"], 0.25),  # and that of its order
        ("mrcr_v2", "x9tide", ["x9", "diet"], 0.5),
        ("mrcr", "abcd x9", ["x9", "abcd"], 0),
        ("mrcr", "Sure: x9abcd", ["x9", "abcd"], 0),
        ("mrcr_v2", "Sure: x9abcd", ["x9", "abcd"], 0),
        ("mrcr_v2", "x9zzz x9 abcd\n", ["x9", "abcd"], 1),
        ("mrcr", "x9zzz x9 abcd\n", ["x9", "abcd"], pytest.approx(2 * 4 / (12 + 4))),
    ],
)
def test_by_hand(match: str, said: str, answers: list[str], score: float) -> None:
    assert MATCHES[match](said, answers) == score


@given(st.text("ab x9.", max_size=12), st.text("ab x9.", min_size=1, max_size=12))
def test_every_score_is_a_share(said: str, answer: str) -> None:
    for name in MATCHES.keys() - {"regex"}:
        assert 0 <= MATCHES[name](said, ["x9", answer]) <= 1, name


def test_a_pattern_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matches, "SEARCH_SECONDS", 0.4)
    with pytest.raises(ConfigError, match=r"takes more than 0.4 s; remove nested repetitions"):
        MATCHES["regex"]("a" * 60 + "b", ["(a+)+$"])


def test_an_example_names_a_known_way() -> None:
    with pytest.raises(ConfigError, match="unknown match 'exakt'; did you mean 'exact'"):
        Example("1", "t", "d", "q", "", ("a",), match="exakt")
