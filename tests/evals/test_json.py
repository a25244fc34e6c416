"""A path in nested records: a reader that knows only words and numbers finds it."""

from __future__ import annotations

import json
import random
import re
from collections import Counter

import pytest
from story_cases import built, count, read, train

from sp.errors import ConfigError
from sp.evals.tasks.json import FRESH, HELD_OUT, LARGEST, JsonPhrases, RecordLayout

NAME, WORD = r"[a-z]+-[a-z]+", "[a-z]+"
Found = dict[str, dict[tuple[str, ...], str]]
SETS = {"held_out": HELD_OUT, "fresh": FRESH}
both = pytest.mark.parametrize("phrases", SETS)


def records(text: str) -> Found:
    """Values by record and path, in whatever layout: a word before a number is a field, one before a word a group."""
    found: Found = {}
    tokens = re.findall(r"[a-z]+-[a-z]+|[a-z]+|\d+", text)
    name = group = ""
    for this, after in zip(tokens, [*tokens[1:], ""], strict=True):
        if "-" in this:
            name = this
            assert name not in found
            found[name] = {}
        elif this.isdigit() or "-" in after:
            continue
        elif after.isdigit():
            path = (this,) if this in (*HELD_OUT.tops, *FRESH.tops) else (group, this)
            assert path not in found[name]
            found[name][path] = after
        else:
            group = this
    return found


def answer(text: str, question: str, kind: str, phrases: JsonPhrases = HELD_OUT) -> str:
    """What a reader of the whole text says."""
    known = records(text)
    if kind in ("record", "group"):
        asked = read(phrases.asks_record if kind == "record" else phrases.asks_group, question, value=r"\d+")
        assert asked
        [(name, path)] = [
            (name, path) for name, held in known.items() for path, value in held.items() if value == asked["value"]
        ]
        return name if kind == "record" else path[0]
    if kind == "top":
        asked = read(phrases.asks_top, question, name=NAME, key=WORD)
        assert asked
        return known[asked["name"]][(asked["key"],)]
    for joiner, inward in phrases.paths:
        if asked := read(phrases.asks, question, name=NAME, path=f"{WORD}{re.escape(joiner)}{WORD}"):
            path = asked["path"].split(joiner)
            return known[asked["name"]][tuple(reversed(path) if inward else path)]
    raise AssertionError(question)


@both
def test_a_second_reader_agrees(phrases: str) -> None:
    for index in range(12):
        example = built("json", phrases=phrases).example(index, 4096, count)
        assert example.facts["kind"] == "path"
        assert (answer(example.document, example.question, "path", SETS[phrases]),) == example.answers


@both
def test_further_questions_agree_too(phrases: str) -> None:
    seen = set()
    for seed in range(8):
        story = built("json").story(random.Random(seed), SETS[phrases], 12)
        for one in story.questions:
            assert (answer("\n".join(story.passages), one.text, one.kind, SETS[phrases]),) == one.answers
            seen.add(one.kind)
    assert seen == {"path", "record", "group", "top"}


@both
def test_the_evidence_alone_says_it(phrases: str) -> None:
    for index in range(20):
        example = built("json", phrases=phrases).example(index, 2048, count)
        assert (answer(" ".join(example.needles), example.question, "path", SETS[phrases]),) == example.answers


def test_some_records_are_json() -> None:
    story = built("json").story(random.Random(0), HELD_OUT, 30)
    parsed = [json.loads(one) for one in story.passages if one.startswith("{")]
    assert parsed
    for one in parsed:
        name = one.get("name") or one["record"]
        flat = {(key,): str(value) for key, value in one.items() if isinstance(value, int)}
        flat |= {(k, f): str(v) for k, held in one.items() if isinstance(held, dict) for f, v in held.items()}
        assert records("\n".join(story.passages))[name] == flat


def test_name_and_value_lie_apart_and_every_word_is_everywhere() -> None:
    example = built("json").example(0, 4096, count)
    name, value = (example.document.index(one) for one in example.needles)
    assert count(example.document[name:value]) > 100
    words = {word for path in records(example.document)[next(iter(records(example.needles[0])))] for word in path}
    assert len(words - set(HELD_OUT.tops)) == 5
    assert all(len(one) == LARGEST == len(set(one)) for one in HELD_OUT.vocabularies + FRESH.vocabularies)


def test_every_sort_of_layout_is_trained_in_other_marks() -> None:
    def sort(one: RecordLayout) -> tuple[bool, ...]:
        return "\n" in one.between, bool(one.pad), bool(one.close.strip()), one.leaf.replace("{pad}", "")[0] in "[(|"

    trained = Counter(map(sort, train("json").layouts))
    assert min(trained[sort(one)] for one in HELD_OUT.layouts) >= 100


def test_no_head_or_word_is_trained() -> None:
    assert not {one.head for one in HELD_OUT.layouts} & {one.head for one in train("json").layouts}
    words = {word for one in HELD_OUT.vocabularies + FRESH.vocabularies for word in one}
    assert not words & {word for one in train("json").vocabularies for word in one}


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="words must be from 2 to 6"):
        built("json", words=7)
