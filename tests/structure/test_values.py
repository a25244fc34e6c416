"""JSON values, lines, blocks and quotations are found as slow readings of the same text find them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sp.structure import JsonValue, is_prose, json_values, line_starts, nested_blocks, unquote

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=6)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
PARTS = ('{"a": ', "[1, ", "]", "}", '"', "{", "[", ",", "1", '{"b": [true]}', "\\", "\n", "x", ": ", '"é"', "[[2]]")
scraps = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


def slow_values(text: str) -> Iterator[tuple[int, int]]:
    """Values from left to right, each the first that a strict decoder takes from a bracket on."""
    at, decoder = 0, json.JSONDecoder(parse_constant=lambda name: 1 / 0)
    while at < len(text):
        if text[at] in "[{":
            try:
                _, end = decoder.raw_decode(text, at)
                yield at, end
                at = end
                continue
            except (ValueError, ZeroDivisionError):
                pass
        at += 1


def loaded(text: bytes, value: JsonValue) -> object:
    """A value put together from the places of its members."""
    if not value.container:
        return json.loads(text[value.value_start : value.end])
    if text[value.value_start : value.value_start + 1] == b"[":
        return [loaded(text, member) for member in value.members]
    keys = [json.loads(text[m.start : m.value_start].rstrip().removesuffix(b":")) for m in value.members]
    return dict(zip(keys, (loaded(text, member) for member in value.members), strict=True))


@settings(max_examples=80, deadline=None)
@given(trees.filter(lambda tree: isinstance(tree, list | dict)), st.sampled_from([None, 1, 4]), st.booleans(), scraps)
def test_members_of_a_value_stand_where_they_are_said_to(
    tree: object, indent: int | None, plain: bool, lead: str
) -> None:
    lead = lead.replace("[", "(").replace("{", "(")
    raw = f"{lead}{json.dumps(tree, indent=indent, ensure_ascii=plain)} and".encode()
    (value,) = json_values(raw)
    assert raw[value.start : value.end].decode() == json.dumps(tree, indent=indent, ensure_ascii=plain)
    assert loaded(raw, value) == tree
    pending = [value]
    while pending:
        top = pending.pop()
        pending += top.members
        for member in top.members[:-1]:
            assert raw[member.comma : member.comma + 1] == b","
        assert not top.members or top.members[-1].comma == -1


@settings(max_examples=200, deadline=None)
@given(scraps)
def test_values_among_scraps_are_those_a_strict_decoder_takes(text: str) -> None:
    """Save inside of what a string may be, where it is a matter of taste: those are whole values all the same."""
    raw = text.encode()
    found = [(value.start, value.end) for value in json_values(raw)]
    for start, end in found:
        json.loads(raw[start:end])
    assert all(one[1] <= other[0] for one, other in pairwise(found))
    if '"' not in text:
        assert found == list(slow_values(text))


@pytest.mark.parametrize(
    "text",
    [b"[" * 60000, b"[" * 30000 + b"]" * 30000, b'{"' * 30000, b'["\\"' * 15000, b'{"a":' * 12000, b"[ " + b" " * 60000,
     b'["' + b"\\\\" * 30000, b"".join(b"`" * (3 + i % 50) + b"x\n" for i in range(2000)), b"<a>\n" * 15000],
    ids=lambda text: repr(text[:8]),
)  # fmt: skip
def test_hostile_text_costs_no_more_than_its_size(text: bytes) -> None:
    def cost(raw: bytes) -> float:
        start = time.process_time()
        json_values(raw)
        nested_blocks(raw, line_starts(raw))
        return time.process_time() - start

    # The least of three: one collection of garbage, of all the tests before, takes longer than all of this.
    small, large = (min(cost(raw) for _ in range(3)) for raw in (text[: len(text) // 4], text))
    assert large < 40 * small + 0.2, "four times the text may cost four times as much, sixteen times is no chance"


def test_fences_and_tags() -> None:
    def blocks(text: str) -> list[tuple[int, int]]:
        return nested_blocks(text.encode(), line_starts(text.encode()))

    assert blocks("a\n```py\n<a>\n~~~\n```\nb") == [(1, 4)]
    assert blocks("````\n```\n````\n") == [(0, 2)]
    assert blocks("```\nnever closed\n") == []
    assert blocks("``` a ` b\n```\n") == []  # no fence opens with a backtick behind it
    assert blocks("<a x='1'>\n<br>\n<a>\n</a>\n</a>\n</a>") == [(0, 4), (2, 3)]
    assert blocks("<a/>\n</a>\n<b>\ntext </b>") == []
    assert blocks("<function=f>\n<parameter=x>\n1\n</parameter>\n</function>") == [(0, 4), (1, 3)]


def test_lines_hold_the_blank_ones_behind_them() -> None:
    assert line_starts(b"").tolist() == [0]
    assert line_starts(b"\n \n").tolist() == [0]
    assert line_starts(b"\n\n  a\n\n \n\tb\r\n\r\nc").tolist() == [0, 9, 15]


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=30), st.booleans())
def test_a_quotation_is_undone(text: str, plain: bool) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    quoted = json.dumps(text, ensure_ascii=plain)[1:-1].encode()
    found = unquote(quoted)
    assert found is not None
    assert found.text.decode() == text
    at = 0
    for character in text:
        size, written = len(character.encode()), json.dumps(character, ensure_ascii=plain)[1:-1].encode()
        assert quoted[found.places[at] :].startswith(written)
        at += size
    assert found.places[-1] == len(quoted)
    assert unquote(b"\\x") is unquote(b"\\ud800") is unquote(b"\\") is None


@pytest.mark.parametrize(
    ("text", "prose"),
    [
        ("He came home late. Nobody had waited for him, and the lamp was out.", True),
        ("彼は遅く帰った。誰も待っていなかった。", True),
        ("for item in items:\n    print(item)\n", False),
        ("2026-01-01 10:00:01 [INFO] started worker 3 in 12ms.", False),
        ("total 12\ndrwxr-xr-x 2 root root", False),
        ("- one\n- two\n- three", False),
    ],
)
def test_prose_is_told_from_code_and_logs(text: str, prose: bool) -> None:
    assert is_prose(text.encode()) is prose
