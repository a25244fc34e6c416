"""What holds for every task that tells a story; what only one of them asks for stands in its own file."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import pytest
from story_cases import built, check, count, example, shares, strings, train

from sp.errors import ConfigError
from sp.evals import TASKS
from sp.evals.story import StoryTask

STORIES = [name for name in TASKS if issubclass(TASKS.class_of(name), StoryTask)]
UNMATCHED = [name for name in STORIES if TASKS.class_of(name).suite == "unmatched"]
FRESH = [name for name in STORIES if built(name).fresh is not None]
TOLD: dict[str, dict[str, Any]] = {"updates": {"never": 0}}
"""Options under which every answer stands in the text."""
UNTOLD = {"nolima": ("by_who", "kind_by_who", "known"), "updates": ("never", "never_named", "often", "whose")}
"""Kinds of questions whose answer no sentence holds letter by letter."""
FRAMED = ("mrcr", "babi", "code", "json")
"""Tasks whose phrases are all tuples; the others have them by relation."""
MARKS: dict[str, tuple[str, ...]] = {
    "code": ("calls", "function_names", "constant_names"),
    "json": (),
    "fact": (),
}
"""Tasks whose phrases share marks with training, and the fields that are those: how a function is called, how words
are joined, what a record is written in is what these mean."""
BLIND = [name for name in STORIES if built(name).blind is not None]
every = pytest.mark.parametrize("name", STORIES)
fresh = pytest.mark.parametrize("name", FRESH)
blind = pytest.mark.parametrize("name", BLIND)
OTHER = [(name, "fresh") for name in FRESH] + [(name, "blind") for name in BLIND]


def test_there_are_such_tasks() -> None:
    assert set(UNMATCHED) == set(STORIES) - {"fact"} >= set(FRESH) > set()
    assert len(UNMATCHED) == 7
    assert set(BLIND) == {"nolima", "updates", "code", "multi_session", "json"}


def check_examples(name: str, tokens: int, **options: Any) -> None:
    """They fit, repeat, differ, and have evidence that stands in the document once and holds the answer."""
    made = [example(name, index, tokens, **options) for index in range(3)]
    assert made[1] == example(name, 1, tokens, **options)
    assert len({one.document for one in made}) == 3
    assert made[0] != example(name, 0, tokens, seed=1, **options)
    for one in made:
        check(one, tokens)
        [answer] = one.answers
        assert any(answer in needle for needle in one.needles)


@every
@pytest.mark.parametrize("tokens", [2048, 4096])
def test_examples(name: str, tokens: int) -> None:
    check_examples(name, tokens, **TOLD.get(name, {}))


@pytest.mark.parametrize(("name", "phrases"), OTHER)
def test_examples_in_other_phrases_are_as_sound_and_say_so(name: str, phrases: str) -> None:
    check_examples(name, 4096, phrases=phrases, **TOLD.get(name, {}))
    task, old = built(name, phrases=phrases), built(name)
    assert repr(task) == repr(old), "examples in held-out phrases are drawn by it, as before there were others"
    assert task.example_id(0, 2048) == old.example_id(0, 2048).replace(name, f"{name}-{phrases}")
    assert task.example_id(0, 2048) == task.example(0, 2048, count).id


@every
def test_every_question_rests_on_what_is_told(name: str) -> None:
    for phrases in (built(name).held_out, train(name)):
        task, rng = built(name), random.Random(3)
        for facts in (6, 7, 12, 24):
            story = task.story(rng, phrases, facts)
            assert len(story.passages) <= facts
            assert 5 <= len(story.questions) <= 48
            for asked in story.questions:
                assert asked.kind
                assert all(any(one in passage for passage in story.passages) for one in asked.evidence)
                if asked.kind not in UNTOLD.get(name, ()):
                    assert any(answer in one for answer in asked.answers for one in asked.evidence)


@pytest.mark.parametrize("name", [name for name in STORIES if name not in MARKS])
def test_examples_and_training_have_no_string_in_common(name: str) -> None:
    """Letter case and white space aside; no string may be empty."""
    ours, theirs = ({one.strip().lower() for one in strings(of)} for of in (built(name).held_out, train(name)))
    assert len(ours) > 50
    assert len(theirs) > 500
    assert ours & theirs <= {""}


@pytest.mark.parametrize(
    ("name", "phrases"), [(name, "held_out") for name in FRAMED] + [(name, "fresh") for name in FRESH]
)
def test_no_frame_or_name_is_trained_and_there_are_many_times_as_many(name: str, phrases: str) -> None:
    trained, written = train(name), built(name, phrases=phrases).written_in
    for field in fields(written):
        mine, its = getattr(written, field.name), getattr(trained, field.name)
        if isinstance(mine, tuple) and field.name not in MARKS.get(name, ()):
            assert not set(map(repr, mine)) & set(map(repr, its)), field.name
        if field.name.startswith("asks"):
            assert len(mine) >= 4, field.name
            assert len(set(its)) >= 30 * len(mine), field.name


@blind
def test_no_blind_frame_is_trained_held_out_or_fresh(name: str) -> None:
    task = built(name)
    base = task.held_out if task.fresh is None else task.fresh
    frames = {one.strip().lower() for one in strings(task.blind)} - {one.strip().lower() for one in strings(base)}
    assert len(frames) >= 12
    assert all("{" in one for one in frames), "words and names are those of another set"
    assert not frames & {one.strip().lower() for of in (train(name), task.held_out) for one in strings(of)}


@fresh
def test_no_fresh_frame_is_an_old_one(name: str) -> None:
    task = built(name)
    for field in fields(task.fresh):
        mine, its = getattr(task.fresh, field.name), getattr(task.held_out, field.name)
        assert not {one for one in map(str, mine) if "{" in one} & set(map(str, its)), field.name


@pytest.mark.parametrize("name", UNMATCHED)
def test_words_do_not_help(name: str) -> None:
    """At 8,000 tokens scorers of words keep the answer in at most one of ten examples, the oracle in nearly all."""
    examples = 40 if name == "multi_session" else 20  # of its first twenty three share words by chance
    asked = shares(name, ("lexical", "bm25", "random", "oracle"), 8192, examples, **TOLD.get(name, {}))
    lexical, bm25, chance, oracle = asked
    assert max(lexical, bm25) <= 0.1, asked
    assert chance <= 0.2, asked
    assert oracle >= 0.95, asked


@every
def test_bad_options_are_told_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match="facts must be at least 0, not -1"):
        built(name, facts=-1)
    with pytest.raises(ConfigError, match=f"task {name}: .*facts"):
        built(name, facts="many")
    with pytest.raises(ConfigError, match="phrases is 'frehs'; did you mean 'fresh'"):
        built(name, phrases="frehs")
    for phrases, having in (("fresh", FRESH), ("blind", BLIND)):
        if name not in having:
            with pytest.raises(ConfigError, match=f"task {name} has no {phrases} phrases"):
                built(name, phrases=phrases)
    with pytest.raises(ConfigError, match="use longer prompts"):
        example(name, 0, 1024, facts=90)
