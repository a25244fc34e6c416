"""Values of a JSON text are replaced, removed and added without a change to anything else."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp.front.json_text import locate, with_member, with_strings, without_member

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=25,
)
INDENTS = st.sampled_from([None, 1])


def paths_of(value, path=()):
    yield path, value
    if isinstance(value, dict | list):
        for step, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths_of(inner, (*path, step))


@given(value=VALUES, ascii_only=st.booleans(), indent=INDENTS)
def test_every_value_is_located(value, ascii_only, indent) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    expected = dict(paths_of(value))
    members = locate(text, expected)
    assert members.keys() == expected.keys()
    for path, member in members.items():
        assert json.loads(text[member.start : member.end]) == expected[path]


@given(value=st.dictionaries(st.text() | st.just("sp"), VALUES), indent=INDENTS, more=VALUES)
def test_members_are_removed_and_added(value, indent, more) -> None:
    text = json.dumps(value, indent=indent)
    assert json.loads(without_member(text, "sp")) == {name: inner for name, inner in value.items() if name != "sp"}
    if "sp" not in value:
        assert without_member(text, "sp") == text
    assert json.loads(with_member(text, (), "sp", more)) == {**value, "sp": more}


@given(value=VALUES, new=st.text())
def test_strings_are_replaced(value, new) -> None:
    strings = [path for path, inner in paths_of(value) if isinstance(inner, str)]
    text = with_strings(json.dumps(value), dict.fromkeys(strings, new))
    expected = dict(paths_of(value)) | dict.fromkeys(strings, new)
    assert {path: inner for path, inner in paths_of(json.loads(text)) if not isinstance(inner, dict | list)} == {
        path: inner for path, inner in expected.items() if not isinstance(inner, dict | list)
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"n":1e400,"m":1.00000000000000000001,"n":2,"a":"x"}',
            '{"n":1e400,"m":1.00000000000000000001,"n":2,"a":"y"}',
        ),
        ('{"a":"z","a":"x"}', '{"a":"z","a":"y"}'),  # of repeated keys the last one counts
        ('{"a":[{"a":"q"}],\t"\\u0061" : "x" }', '{"a":[{"a":"q"}],\t"\\u0061" : "y" }'),
        ('{"s":"\\ud800 \\"a\\":\\"x\\"","a":"x"}', '{"s":"\\ud800 \\"a\\":\\"x\\"","a":"y"}'),
    ],
)
def test_all_else_is_the_same(text: str, expected: str) -> None:
    assert with_strings(text, {("a",): "y"}) == expected


def test_a_repeated_member_is_removed_wherever_it_stands() -> None:
    assert without_member('{"sp": 1, "n": 2 , "sp": {"a": [1]} }', "sp") == '{ "n": 2  }'
    assert without_member('{"sp": 1}', "sp") == "{}"


def test_time_grows_with_the_text() -> None:
    text = json.dumps({"messages": [{"role": "user", "content": 'say "x"\n' * 20} for _ in range(4000)]})
    start = time.perf_counter()
    assert locate(text, [("messages", 3999, "content")])
    assert time.perf_counter() - start < 2
