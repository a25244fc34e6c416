"""Grammars of training phrases: nothing held out comes back in other marks, and what is asked has one answer."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from embedded_pair import ROOT

sys.path.append(str(ROOT / "experiments" / "instrument"))

import bank
from bank import Bank
from compose import LABELS, Composer, Mix
from feed import Stage, collate, draw
from phrases import kin, moving, ordered, paths, scenes
from phrases.echo import echoes
from phrases.expand import held
from phrases.grammar import Grammar, drawn, tidy
from phrases.grown import GROWN, SPELT
from phrases.language import language_story, lines
from phrases.spelling import VOCABULARY, Spelt, held_words
from teller import NAMES, Teller
from tokenizer import Encoder

from sp.evals import TASKS
from sp.evals.story import StoryTask
from sp.evals.text import tables as words
from sp.gguf import GGUFFile
from sp.session import embedded

RULES: list[tuple[Grammar, str]] = [
    *((paths.GRAMMAR, rule) for rule in ("ask", "top")),
    *((grammar, "owner") for grammar in (paths.RECORD, paths.GROUP)),
    *((kin.GRAMMAR, rule) for rule in ("link", "number", "residence", "trade", "whom")),
    *((kin.GRAMMAR, f"asks_{kind}") for kind in ("number", "town", "trade", "day", "linked", "by_day")),
    *((moving.GRAMMAR, rule) for rule in moving.FIELDS.values()),
    *((ordered.GRAMMAR, rule) for rule in ordered.FIELDS.values()),
    *((grammar, "asks") for grammar in (ordered.ONLY, ordered.FINAL)),
    *((scenes.GRAMMAR, one.told) for one in scenes.RELATIONS),
    *((scenes.GRAMMAR, rule) for one in scenes.RELATIONS for rule, _ in one.asks),
]
TASKS_TOLD = [name for name in TASKS if issubclass(TASKS.class_of(name), StoryTask)]


def bare(text: str) -> str:
    """Words alone, slots as `_`, a blank at both ends."""
    return f" {' '.join(re.sub('[^a-z0-9_]+', ' ', re.sub(r'{[a-z]*}', ' _ ', text.lower())).split())} "


@cache
def held_out() -> tuple[str, ...]:
    """Every held-out or fresh string with two words or more, as words alone."""
    both = [(TASKS.class_of(name).held_out, TASKS.class_of(name).fresh) for name in TASKS_TOLD]  # type: ignore[attr-defined]
    strings = {bare(text) for pair in both for one in pair if one is not None for text in held(one)}
    return tuple(one for one in strings if len(one.replace("_", " ").split()) >= 2)


@pytest.mark.parametrize(("grammar", "rule"), RULES, ids=[rule for _, rule in RULES])
def test_no_frame_has_a_held_out_one_inside_whatever_its_marks(grammar: Grammar, rule: str) -> None:
    frames = drawn(grammar, rule, random.Random(5), 120)
    assert frames
    said = [bare(one) for one in frames]
    assert not [(one, held) for held in held_out() for one in said if held in one]


def test_an_echo_is_heard_in_other_marks_and_words_are_free() -> None:
    assert len(held_out()) > 400
    for joiner in (", then at ", " - to be found, inside ", "; and in there: ", " (which is within) "):
        assert echoes(f"read {{key}}{joiner}{{group}}"), joiner
    for joiner in (" lies within ", " inside ", ", there in it ", " under "):
        assert not echoes(f"read {{key}}{joiner}{{group}}"), joiner
    assert echoes("tell us: where has the {what} ended up, finally?")


def told(name: str, seeds: int) -> Iterator[tuple[str, str]]:
    """Questions and passages of stories in the grammar, spelt from tokens where the task has that."""
    for seed in range(seeds):
        teller = Teller(name, random.Random(seed))
        story = teller.told(1.0, float(name in SPELT)).story(random.Random(seed), 12)
        yield from (("question", one.text) for one in story.questions)
        yield from (("passage", one) for one in story.passages)


@pytest.mark.parametrize("name", GROWN)
def test_what_is_told_is_new_and_no_slot_is_left(name: str) -> None:
    found = list(told(name, 4))
    assert len({text for kind, text in found if kind == "question"}) > 20
    for kind, text in found:
        assert paths.MARK not in text
        assert not re.search(r"<\w+>", text) or name == "json" or kind == "passage", text
        assert kind == "passage" or not re.search(r"\{[a-z]+\}", text), text


def test_a_path_is_asked_for_in_the_direction_in_which_it_is_true() -> None:
    phrases, sent = paths.asking(Teller("json", random.Random(0)).phrases, random.Random(1), 60)
    task = TASKS.build("json", {"words": 3})
    for seed in range(20):
        plain = task.story(random.Random(seed), phrases, 4)  # type: ignore[attr-defined]
        for before, after in zip(plain.questions, sent(plain).questions, strict=True):
            assert before.answers == after.answers
            if before.kind == "path":
                name, group, key = paths.parts(before.text)
                assert all(one in after.text for one in (name, group, key))
                passage = next(one for one in plain.passages if all(text in one for text in before.evidence))
                assert name in passage
                assert before.evidence[1].endswith(before.answers[0]) or key in before.evidence[1]


def test_inward_names_the_group_behind_its_field_but_for_genitives() -> None:
    rng = random.Random(2)
    for _ in range(300):
        inward, outward = (paths.GRAMMAR.draw(rule, rng) for rule in ("inward", "outward"))
        assert inward.index("{key}") < inward.index("{group}") or "{group}'s" in inward, inward
        assert outward.index("{group}") < outward.index("{key}"), outward


def test_scenes_have_one_answer_to_every_question() -> None:
    for seed in range(30):
        story = language_story(random.Random(seed), 12)
        texts = [one.text for one in story.questions]
        assert len(set(texts)) == len(texts)
        for one in story.questions:
            assert one.evidence[0] in story.passages
            assert one.answers[0].lower() in one.evidence[0].lower()


def test_plain_lines_tell_what_is_to_be_known_before_they_ask() -> None:
    for seed in range(30):
        said = ""
        for text, known in lines(random.Random(seed)):
            assert not known or text.strip().lower() in said.lower(), (text, said)
            said += text


@pytest.mark.parametrize("capital", [None, True, False])
def test_spelt_words_are_new_and_stay_the_same(capital: bool | None) -> None:
    first, second = Spelt(capital), Spelt(capital)
    rng = random.Random(0)
    at = [rng.getrandbits(39) for _ in range(3000)]
    made = [first[one] for one in at]
    assert made == [second[one] for one in at]
    assert len(set(made)) > 2000
    assert not {one.lower() for one in made} & (held_words() | {one.lower() for one in (*words.NAMES, *words.TOWNS)})
    assert capital is None or all(one[0].isupper() == capital for one in made)


def test_words_are_spelt_from_the_vocabulary_that_the_embedded_files_have() -> None:
    theirs = json.loads(Path(VOCABULARY).read_text())["model"]["vocab"]
    for role in ("drafter", "target"):
        with GGUFFile.open(embedded(role)) as file:
            tokens = list(file.metadata["tokenizer.ggml.tokens"])
        assert set(theirs) <= set(tokens)


def test_a_rule_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="no rule for"):
        Grammar({"a": ["<b>"]})
    assert tidy("an  end , .") == "an end."


@pytest.fixture(scope="module")
def composer(tmp_path_factory: pytest.TempPathFactory) -> Composer:
    file = tmp_path_factory.mktemp("bank") / "bank.json"
    text = bank.grammar(1, 200_000, False)  # prose and code of the real one are read from all of Python's library
    file.write_text(json.dumps({"train": dict.fromkeys(("grammar", "prose", "code"), text)}))
    encoder = Encoder(VOCABULARY)
    return Composer(encoder, Bank.load(encoder, file, "train"), 5)


def test_labels_of_older_logs_keep_their_numbers() -> None:
    assert (*NAMES, "quote", "language") == LABELS


def test_lines_are_plain_text_whose_known_words_are_predicted(composer: Composer) -> None:
    for _ in range(4):
        sample = composer.lines(700)
        assert 300 < len(sample.ids) <= 700
        assert len(set(sample.rows)) == len(sample.rows) == len(sample.first) == len(sample.kind)
        said = composer.encoder.decode(sample.ids[[row + 1 for row in sample.rows]].tolist())
        assert said.count(".") + said.count(",") + said.count(":") >= sample.first.count(2) / 2
        assert composer.encoder.decode(sample.ids.tolist()).count("<|im_start|>") == 1


def test_text_around_people_may_hold_their_passages_within_a_line(composer: Composer) -> None:
    told = composer.tellers["nolima"].told()
    for size in (5, 400, 900):
        ids = composer.filler._within(told, size)
        text = composer.encoder.decode(ids)
        assert len(ids) <= size
        assert (not text and size < 900) or (text[0] == " " and text[-1] == "." and "\n" in text)


@pytest.mark.parametrize("name", ["drafter-11", "target-11", "drafter-12", "target-12"])
def test_every_stage_of_parts_with_grammars_can_be_drawn(name: str, composer: Composer) -> None:
    config = yaml.safe_load((ROOT / "experiments" / "instrument" / "configs" / f"{name}.yaml").read_text())
    lengths = [stage["length"] for stage in config["stages"]]
    assert lengths == ([2048, 10240, 131072, 32768, 10240] if name.endswith("11") else [32768, 131072])
    rng = random.Random(1)
    for given in config["stages"]:
        mix = {**config["mix"], **given.pop("mix")}
        stage = Stage(**given | {"length": min(given["length"], 4096), "mix": mix})
        items = [draw(composer, stage, Mix(**mix), rng) for _ in range(3)]
        batch = collate(items, stage, composer.encoder.end_of_text, rng)
        assert all(len(item["ids"]) <= stage.length for item in items)
        assert (batch["rows"] < stage.length).all()
        assert ((batch["weight"] > 0).sum(1) > stage.lm_rows).all()
