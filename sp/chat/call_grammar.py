"""Calls as a grammar: what a model may write of them, for llguidance, in its variant of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sp.chat.brace_grammar import Braces
from sp.chat.call_splitter import Calling
from sp.chat.calls import listed, resolved, types_of
from sp.chat.reasoning import Marks

ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, as Python writes it: where white space is free, a small model may write nothing else for ever."""
ANYTHING = r"/(.|\n)*/"
GAP = r"/[ \n]{0,3}/"  # between thinking and what follows it
KEY = re.compile(r"[^<>\n\"]{1,256}")  # of a parameter between tags


@dataclass(frozen=True)
class CallGrammar:
    """Grammars of answers with calls.

    Parameters
    ----------
    calling : Calling
        The tools, and how calls of them are written.
    schemas : mapping
        Of the tools whose arguments are held to one, by their names; those of others are any object.
    special : mapping
        Special tokens by their texts; no other token spells these.
    ends : collection of str
        Texts of those that end an answer, which the grammar leaves to its end.

    Examples
    --------
    >>> from sp.chat.calls import CALLS
    >>> style = next(style for style in CALLS if style.name == "bare_json")
    >>> print(CallGrammar(Calling(style, [{"function": {"name": "look"}}])).forced('{"name": "'))
    start: begun
    begun: begun_0
    begun_0: "look\\", \\"parameters\\": " given_0 "}"
    given_0: %json {"type": "object", "x-guidance": {"whitespace_flexible": false, ...
    """

    calling: Calling
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    special: Mapping[str, int] = field(default_factory=dict)
    ends: frozenset[str] = frozenset()

    def forced(self, begun: str | None) -> str:
        """Calls and nothing else. `begun`: what the prompt has of the first one; None behind thinking, where white
        space may come first.
        """
        first = f"{GAP} call" if begun is None else "begun"
        return self._lines(f"start: {first}{self._more}", begun=begun or "")

    def either(self, schema: str) -> str:
        """Calls and nothing else, or JSON of a schema."""
        return self._lines(f"start: {GAP} (call{self._more} | answer)", f"answer: {json_rule(json.loads(schema))}")

    def lazy(self, marks: Marks | None) -> str:
        """Text in which calls may begin, by their mark. `marks`: of the thinking that may come first; it is free."""
        begin = self.calling.style.begin
        bare = [re.escape(text) for name in self.schemas for text in self.calling.style.bare(name)]
        first = r"[ \n]*" if self.calling.style.bare_first else r"(.|\n)*"
        free = [f"~/{first}({'|'.join(bare)})(.|\\n)*/"] if bare else []
        known = begin in self.special
        free += [] if known else [f"~/(.|\\n)*{re.escape(begin)}(.|\\n)*/"]
        open_ = f"FREE {self._spelled(begin)}" if known else "opener"
        lines = [
            f"start: {'thought? ' if marks else ''}({open_} behind)* FREE",
            " & ".join([f"FREE: {ANYTHING}", *free]),
        ]
        lines += [] if known else [f"opener[suffix={json.dumps(begin)}]: {ANYTHING}"]
        if marks:
            end = self._until(marks.end, "thinking")
            lines += [f"thought: {self._spelled(marks.start)} {end[0]}", *end[1]]
        return self._lines(*lines, behind=begin)

    def message(self, name: str) -> str:
        """What stands behind the header of a call."""
        end = "" if self.calling.style.end in self.ends else self.calling.style.end
        return "\n".join([f"start: {self._spelled('', 'given_0', end)}", *self._given(name, 0)])

    @property
    def _more(self) -> str:
        """Further calls behind the first."""
        between = self.calling.style.between
        return "" if between is None or self.calling.single else f" ({self._spelled(between)} call)*"

    def _lines(self, *start: str, begun: str = "", behind: str = "") -> str:
        """All rules that those at the start need."""
        names = [tool["function"]["name"] for tool in self.calling.tools]
        wanted, used = [], " ".join(start)
        for rule, given in (("begun", begun), ("behind", behind), ("call", "")):
            if re.search(rf"\b{rule}\b", used):
                wanted.append((rule, given))
        lines = list(start)
        for rule, given in wanted:
            may = [at for at, name in enumerate(names) if self.calling.style.opening(name).startswith(given)]
            lines.append(f"{rule}: " + " | ".join(f"{rule}_{at}" for at in may))
            lines += [f"{rule}_{at}: {self._call(names[at], at, given)}" for at in may]
        for at, name in enumerate(names):
            lines += self._given(name, at)
        return "\n".join(lines)

    def _call(self, name: str, at: int, begun: str) -> str:
        """A call of a tool, but for what is there of it already."""
        style = self.calling.style
        head = style.opening(name)
        before, behind = style.written.around
        end = "" if style.end in self.ends else style.end
        return self._spelled(head[len(begun) :] + before, f"given_{at}", behind + end)

    def _given(self, name: str, at: int) -> list[str]:
        """What stands for the arguments of a tool."""
        written, schema = self.calling.style.written, self.schemas.get(name)
        if written.braces:
            braces = Braces(f"braced_{at}", schema or {}, self._spelled, self._until, json_rule)
            return [f"given_{at}: {braces.body(schema)}", *braces.lines]
        if not written.parameter:
            return [f"given_{at}: {json_rule({'type': 'object'} if schema is None else closed(schema))}"]
        properties = None if schema is None else schema.get("properties", {})
        if schema is None or not isinstance(properties, dict) or not all(map(KEY.fullmatch, properties)):
            sign, _, rest = written.parameter[0].partition("{}")
            value, lines = self._until(written.parameter[1], f"any_{at}")
            key = f'key_{at}: /[^<>\\n"]{{1,256}}/'
            return [f"given_{at}: ({self._spelled(sign, f'key_{at}', rest)} {value})*", key, *lines]
        required, lines, whole = listed(schema, "required"), list[str](), list[str]()
        for number, (key, value) in enumerate(properties.items()):
            rule = f"given_{at}_{number}"
            lines += self._parameter(rule, key, value, schema)
            whole.append(rule if key in required else f"{rule}?")
        return [f"given_{at}: {' '.join(whole) or self._spelled('')}", *lines]

    def _parameter(self, rule: str, key: str, schema: Any, root: Mapping[str, Any]) -> list[str]:
        """A parameter between tags: text as it is, and anything else as JSON."""
        written = self.calling.style.written
        head, end = written.parameter[0].format(key), written.parameter[1]
        found = resolved(schema, root)
        types, known = types_of(found), found if isinstance(found, dict) else {}
        words = listed(known, "enum") or ([known["const"]] if "const" in known else [])
        if words and all(isinstance(word, str) for word in words):
            return [f"{rule}: " + " | ".join(self._spelled(head + word + end) for word in words)]
        if not words and (not types or "string" in types):
            value, lines = self._until(end, f"{rule}_text")
            return [f"{rule}: {self._spelled(head)} {value}", *lines]
        shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
        value = json_rule({**shared, **known})
        return [f"{rule}: {self._spelled(head, f'{rule}_json', end)}", f"{rule}_json: {value}"]

    def _until(self, end: str, rule: str) -> tuple[str, list[str]]:
        """Text up to the first place of its end, and the rules that this needs."""
        if end in self.special:
            return f"{rule} {self._spelled(end)}", [f"{rule}: {ANYTHING}"]
        return rule, [f"{rule}[suffix={json.dumps(end)}]: {ANYTHING}"]

    def _spelled(self, *texts: str) -> str:
        """Texts, and between them names of rules, one after the other; special tokens by their numbers."""
        marks = [text for text in self.special if any(text in part for part in texts[::2])]
        cut = re.compile("(" + "|".join(map(re.escape, sorted(marks, key=len, reverse=True))) + ")") if marks else None
        found = list[str]()
        for place, part in enumerate(texts):
            if place % 2:
                found.append(part)
                continue
            for each in cut.split(part) if cut else [part]:
                if each:
                    found.append(f"<[{self.special[each]}]>" if each in self.special else json.dumps(each))
        return " ".join(found) or '""'


OPEN = ("additionalProperties", "unevaluatedProperties", "patternProperties", "allOf", "anyOf", "oneOf", "if", "$ref")
"""By which a schema lets in more properties than it lists, or none."""


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema whose object has the properties it lists alone, if it does not say otherwise: a tool expects no others,
    and small models write them without end.

    >>> closed({"properties": {"a": {}}})["additionalProperties"]
    False
    """
    alone = "properties" in schema and not any(key in schema for key in OPEN)
    return {**schema, "additionalProperties": False} if alone else dict(schema)


def json_rule(schema: Mapping[str, Any]) -> str:
    """JSON of a schema, on one line."""
    return f"%json {json.dumps({**schema, 'x-guidance': ONE_LINE}, ensure_ascii=False)}"
