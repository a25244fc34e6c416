"""Whole lines, JSON values and messages: rules on small prompts, and transcripts at random."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from selection_cases import PLAIN
from structure_cases import faults, json_faults, line_faults
from structure_fuzz import check, vocabularies

from sp.chat import Segment
from sp.errors import ConfigError
from sp.selection import SELECTORS, Selection, SelectionRequest


def pick(name: str, tokens: list[str], scores: dict[str, float], keep: int, **options: Any) -> str:
    """What is kept of tokens, `keep` of them at most, when those spelled so have these scores."""
    return read(tokens, select(name, tokens, scores, keep, **options))


def select(name: str, tokens: list[str], scores: dict[str, float], keep: int, **options: Any) -> Selection:
    segments = options.pop("segments", ())
    ends = np.cumsum([len(token.encode()) for token in tokens])
    spans = np.stack([np.append(0, ends[:-1]), ends], 1)
    values = np.array([scores.get(token.strip(), 0) for token in tokens], np.float32)
    protected = np.array(options.pop("protected", np.zeros(len(tokens))), bool)
    text = "".join(tokens).encode()
    ratio = (keep - protected.sum()) / (len(tokens) - protected.sum())
    request = SelectionRequest(values, protected, ratio, text, spans, segments)
    return SELECTORS.build(name, PLAIN | options).select(request)


def read(tokens: list[str], selection: Selection) -> str:
    raw, at, found = "".join(tokens).encode(), 0, []
    for number, token in enumerate(tokens):
        end = at + len(token.encode())
        if selection.selected[number]:
            found += [raw[low:high] for low, high in selection.byte_ranges.get(number, ((at, end),))]
        at = end
    return b"".join(found).decode()


RECORD = list('{"a":1,"b":[2,3],"c":{"d":4,"e":5}}')


def test_a_value_brings_the_way_to_it_and_what_its_commas_need() -> None:
    # Each value has a pivot, the first of its smallest members: "a" at the top, "d" in "c", 2 in "b".
    assert pick("json", RECORD, {"1": 9}, 7, longest=8) == '{"a":1}'
    assert pick("json", RECORD, {"5": 9}, 26, longest=8) == '{"a":1,"c":{"d":4,"e":5}}'
    assert pick("json", RECORD, {"3": 9}, 17, longest=8) == '{"a":1,"b":[2,3]}'
    assert pick("json", RECORD, {"3": 9}, 16, longest=8) == ""  # never in part
    assert pick("json", RECORD, {"2": 9, "3": 9}, 17, longest=10) == '{"a":1,"b":[2,3]}'


@pytest.mark.parametrize("seed", range(20))
def test_any_choice_of_members_parses_whatever_the_tokens_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = {"k": [{"x": i, "y": "é" * i, "z": [i, {}]} for i in range(4)], "l": "a,b", "m": {"n": {"o": [[], 1]}}}
    text = json.dumps(
        tree, ensure_ascii=False, indent=[None, 2][seed % 2], separators=[(",", ":"), (", ", ": ")][seed % 3 > 0]
    )
    cuts = np.sort(rng.choice(np.arange(1, len(text)), len(text) // rng.integers(2, 6), replace=False)).tolist()
    tokens = [text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    scores = {token.strip(): float(rng.random()) for token in tokens}
    sizes = set()
    for keep in range(1, len(tokens), 3):
        kept = pick("json", tokens, scores, keep, longest=int(rng.integers(1, 9)))
        assert not json_faults(kept, text)
        sizes.add(len(kept))
    assert len(sizes) > 3


def test_a_token_over_two_members_is_read_in_part() -> None:
    tokens = ['{"a":"', "x", '","', "b", '":"', "y", '","', "c", '":"', "z", '"}']
    selection = select("json", tokens, {"z": 9}, 10, longest=1)
    assert json_faults(read(tokens, selection), "".join(tokens)) == []
    assert json.loads(read(tokens, selection)).get("c") == "z"
    assert "y" not in read(tokens, selection)
    assert selection.byte_ranges  # '","' stands at an end of "y", too


def test_a_small_value_is_kept_or_left_out_whole() -> None:
    tokens = list('[{"i":1,"j":2},{"i":3,"j":4},{"i":5,"j":6}]')
    assert json.loads(pick("json", tokens, {"4": 99}, 32, longest=14)) == [{"i": 1, "j": 2}, {"i": 3, "j": 4}]


def test_lines_stay_whole_with_the_fences_and_tags_round_them() -> None:
    tokens = [
        part
        for line in ("<a>", "one", "```", "two x", "three", "```", "</a>", "four")
        for part in (*line.split(" "), "\n")
    ]
    assert pick("lines", tokens, {"two": 9, "x": 9}, 11) == "<a>\n```\ntwox\n```\n</a>\n"
    assert pick("lines", tokens, {"four": 9}, 2) == "four\n"
    assert pick("lines", tokens, {"three": 9}, 9) == ""


def test_indentation_that_shares_a_token_with_the_line_break_is_kept_with_its_line() -> None:
    tokens = ["a", ":", "\n    ", "b", "\n    ", "c", "\n", "d"]
    assert pick("lines", tokens, {"c": 9}, 3).endswith("\n    c\n")
    assert pick("lines", tokens, {"d": 9}, 1) == "d"


def test_a_long_line_waits_until_as_much_was_chosen_and_the_report_says_so() -> None:
    tokens = [*"xxxxxx", "\n", *[part for number in range(9) for part in (str(number), "\n")]]
    scores = {"x": 9.0} | {str(number): 9.0 - number for number in range(9)}
    selection = select("lines", tokens, scores, 12, longest=4)
    assert read(tokens, selection) == "0\n1\n2\n3\n"  # the long line came next, and did not fit
    assert selection.notes == ("1 long lines or values were passed over for their size; the longest has 7 tokens",)
    assert read(tokens, select("lines", tokens, scores, 15, longest=4)) == "xxxxxx\n0\n1\n2\n3\n"
    assert select("lines", tokens, scores, 12, longest=9).notes == ()


def test_a_line_of_over_a_thousand_tokens_is_split_like_prose() -> None:
    """A minified script has no shorter lines; as a whole it would be left out whatever matters in it."""
    tokens = ["A\n", *(f"<{number}>" for number in range(1024)), "\n", "Z\n"]
    assert pick("lines", tokens, {"<30>": 9}, 5, longest=4) == "<28><29><30><31>\n"
    assert pick("lines", tokens[:-3] + tokens[-2:], {"<30>": 9}, 4, longest=4) == "A\nZ\n", "1,024 tokens: one unit"


def test_segments_take_messages_by_what_they_are() -> None:
    prose = ["Rain", " fell", " on", " it", ".", " Nobody", " came", " by", " then", ".", "\n"]
    code = ["x", "=", "f", "(", "1", ")", "\n", "y", "=", "g", "(", "x", ")", "\n"]
    tokens = ["<u>", *prose, "<t>", *code, "<e>"]
    edges = np.cumsum([0, *(len(token) for token in tokens)]).tolist()
    marks = [0, len(prose) + 1, len(tokens) - 1]
    protected = np.isin(np.arange(len(tokens)), marks)
    parts = tuple(
        Segment(kind, edges[low + 1], edges[high], index)  # type: ignore[arg-type]
        for index, (kind, low, high) in enumerate([("user", marks[0], marks[1]), ("tool", marks[1], marks[2])])
    )
    more = {"segments": parts, "protected": protected}
    assert pick("segments", tokens, {"came": 9}, 9, longest=8, **more) == "<u> Nobody came by then.\n<t><e>"
    assert pick("segments", tokens, {"y": 9}, 10, longest=8, **more) == "<u><t>y=g(x)\n<e>"
    assert pick("segments", tokens, {"y": 9}, 17, longest=14, **more) == "<u><t>" + "".join(code) + "<e>"
    assert pick("segments", tokens, {"y": 9}, 16, longest=14, **more) == "<u><t><e>"


def test_markup_that_shares_a_token_with_what_is_left_out_is_read_alone() -> None:
    tokens = ["<t>", "[", "1", ",", "2", "]</t>", "?"]
    segment = Segment("tool", 3, 8)
    protected = [True, False, False, False, False, True, True]
    selection = select("json", tokens, {}, 4, segments=(segment,), protected=protected)
    assert read(tokens, selection) == "<t></t>?"
    assert dict(selection.byte_ranges) == {5: ((8, 12),)}
    assert read(tokens, select("json", tokens, {}, 7, segments=(segment,), protected=protected)) == "".join(tokens)


def test_a_quoted_result_is_taken_apart_by_what_it_says() -> None:
    said = json.dumps({"a": 1, "b": [1, 2], "c": "é\n"}, ensure_ascii=False)
    quoted = json.dumps(said, ensure_ascii=False)
    tokens = list(quoted)
    more = {"segments": (Segment("tool", 1, len(quoted.encode()) - 1, 0, True),)}
    protected = np.zeros(len(tokens))
    protected[[0, -1]] = 1
    kept = pick("json", tokens, {"2": 9}, 34, longest=1, protected=protected, **more)
    assert json.loads(json.loads(kept)) == {"a": 1, "b": [1, 2]}


def test_the_text_must_be_known() -> None:
    request = SelectionRequest(np.zeros(4, np.float32), np.zeros(4, bool), 0.5)
    for name in ("lines", "json", "segments"):
        with pytest.raises(ConfigError, match=f"selector {name} needs the text"):
            SELECTORS.build(name).select(request)


def test_the_checks_of_the_transcripts_can_fail() -> None:
    whole = '[1, {"a": [2, 3]}]'
    assert not json_faults('[{"a": [3]}]', whole)
    for broken in ("[1, ]", "[1", '[{"a": [3, 2]}]', '[{"b": 1}]', '[1, "1"]', "{}"):
        assert json_faults(broken, whole)
    assert not line_faults("a b\nd", "a b\nc\nd")
    assert line_faults("a b\nb", "a b\nc\nd")
    assert line_faults("d\nc", "a b\nc\nd")
    assert not faults("log", 'x {"a": 1}', 'x {"a": 1, "b": 2}')
    assert faults("log", 'x {"a": 2}', 'x {"a": 1, "b": 2}')
    assert faults("fenced", "```\na", "")
    assert faults("tags", "<a>\n</b>", "")


def test_transcripts_of_agents() -> None:
    """A few of those that `structure_fuzz.py` goes through by the thousand."""
    kept = 0
    for seed in range(6):
        counted, wrong = check(seed, vocabularies())
        assert not wrong
        kept += sum(count for name, count in counted.items() if name.endswith("in part"))
    assert kept > 20
