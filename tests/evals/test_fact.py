"""The task fact: ten forms and an alias, read back by plain patterns, none of which stands in a trained form."""

from __future__ import annotations

import random
import re

import pytest
from story_cases import check, example, strings, train

from sp.errors import ConfigError
from sp.evals.tasks.fact import HELD_OUT, Fact

READ = {
    "assigned": r"{key} was assigned the number (\d+)\.",
    "code": r"^{key} = (\d+)$",
    "json": r'^\{{"id": "{key}", "value": (\d+)\}}$',
    "paraphrase": r"get past {key} had better have (\d+) at hand",
    "passive": r"{key} has always been filed by the archivists under (\d+)\.",
    "table": r"^\| {key} \| (\d+) \|$",
    "yaml": r"^{key}: (\d+)$",
    "log": r"^INFO {key} resolved to (\d+) after",
    "comment": r"^    # {key} must stay at (\d+) for",
    "value_first": r"(\d+) is what the ledger gives for {key}\.",
    "alias": r"{key}: (\d+)\.",
}


@pytest.mark.parametrize("form", range(11))
def test_a_form(form: int) -> None:
    name = HELD_OUT.forms[form].name
    one = example("fact", 0, form=form)
    check(one, 2048)
    assert one == example("fact", 0, form=form)
    assert one.facts["kind"] == name
    key = re.search(r"[a-z]+[-_][a-z]+|[A-Z]+_[A-Z]+", one.question)[0]  # type: ignore[index]
    if name == "alias":
        key = re.search(rf"{key} is also called (\w+)\.", one.document)[1]  # type: ignore[index]
    assert re.findall(READ[name].format(key=re.escape(key)), one.document, re.MULTILINE) == list(one.answers)
    others = [
        value for value in re.findall(READ[name].format(key=r"[\w-]+"), one.document, re.MULTILINE) if int(value) > 99
    ]
    assert len(others) == len(set(others)) == (6 if name == "alias" else 12)


def test_forms_take_turns() -> None:
    made = [example("fact", index, 600) for index in range(12)]
    assert [one.facts["kind"] for one in made] == [form.name for form in HELD_OUT.forms] + ["assigned"]
    assert len({one.id for one in made}) == 12
    assert made[1].document == example("fact", 1, 600, form=1).document
    assert made[1].id != example("fact", 1, 600, form=1).id
    with pytest.raises(ConfigError, match="form must be -1 for all in turn, or one of 0 assigned, 1 code"):
        Fact(form=11)


@pytest.mark.parametrize("facts", [1, 2, 6, 24])
def test_every_question_of_a_story(facts: int) -> None:
    for phrases, seed in ((HELD_OUT, 0), *((train("fact"), at) for at in range(40))):
        story = Fact().story(random.Random(seed), phrases, facts)
        text = "\n".join(story.passages)
        for question in story.questions:
            assert all(said in text for said in question.evidence)
            assert question.answers[0] in " ".join(question.evidence)


def test_phrases_are_held_out() -> None:
    named = {form.name for form in HELD_OUT.forms} | set(HELD_OUT.fillers)
    ours, theirs = ({one.strip().lower() for one in strings(of)} for of in (HELD_OUT, train("fact")))
    assert ours & theirs <= named | {"", "adjective-noun", "snake", "upper", "number"}
    assert len(ours) > 50
    assert len(theirs) > 500
    plain = [frame.replace("{alias}", "{key}").strip() for form in HELD_OUT.forms for frame in form.frames]
    trained = [frame.replace("{alias}", "{key}") for form in train("fact").forms for frame in form.frames]
    assert len(trained) > 3000
    assert not [frame for frame in trained if any(one.rstrip(".") in frame for one in plain)]


def test_filler_of_training_mixes_kinds_and_shares_no_line_with_examples() -> None:
    phrases = train("fact")
    assert set(phrases.fillers) > set(HELD_OUT.fillers)
    ours, theirs = (Fact().filler(random.Random(1), some) for some in (HELD_OUT, phrases))
    lines = [{next(stream).text for _ in range(2000)} for stream in (ours, theirs)]
    assert lines[0].isdisjoint(lines[1])
    for kind in ("def ", '{"', "| ", "INFO"):
        assert any(kind in line for line in lines[0])
