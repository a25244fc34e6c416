"""Grammars of calls in llguidance's variant of Lark, to which a model's output is restricted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sp.chat.brace_grammar import Braces
from sp.chat.call_splitter import Calling
from sp.chat.calls import list_of, resolved, types_of
from sp.chat.reasoning import Marks

ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, as Python writes it: with free white space a small model may write nothing else forever."""
ANYTHING = r"/(.|\n)*/"
GAP = r"/[ \n]{0,3}/"  # between thinking and the answer
KEY = re.compile(r"[^<>\n\"]{1,256}")  # name of a parameter between tags


@dataclass(frozen=True)
class CallGrammar:
    """Grammars of answers with calls.

    Parameters
    ----------
    calling : Calling
        The tools, and the format of their calls.
    schemas : mapping
        Schemas by tool name, for tools whose arguments are restricted; those of other tools are any object.
    special : mapping
        Token ids of special tokens by their texts; no other token spells these.
    ends : collection of str
        Texts of the special tokens that end an answer, which the grammar does not contain.

    Examples
    --------
    >>> from sp.chat.calls import CALLS
    >>> style = next(style for style in CALLS if style.name == "bare_json")
    >>> print(CallGrammar(Calling(style, [{"function": {"name": "look"}}])).forced('{"name": "'))
    start: call_rest
    call_rest: call_rest_0
    call_rest_0: "look\\", \\"parameters\\": " arguments_0 "}"
    arguments_0: %json {"type": "object", "x-guidance": {"whitespace_flexible": false, ...
    """

    calling: Calling
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    special: Mapping[str, int] = field(default_factory=dict)
    ends: frozenset[str] = frozenset()

    def forced(self, prefix: str | None) -> str:
        """Return the grammar of calls and nothing else.

        `prefix`: the part of the first call that the prompt contains; None after thinking, where white space may come
        first.
        """
        first = f"{GAP} call" if prefix is None else "call_rest"
        return self._lines(f"start: {first}{self._more}", prefix=prefix or "")

    def either(self, schema: str) -> str:
        """Return the grammar of either calls or JSON of a schema, and nothing else."""
        return self._lines(f"start: {GAP} (call{self._more} | answer)", f"answer: {json_rule(json.loads(schema))}")

    def lazy(self, marks: Marks | None) -> str:
        """Return the grammar of text in which calls may begin, at their mark.

        `marks`: of the thinking that may come first, which is not restricted.
        """
        begin = self.calling.style.begin
        # Starts of calls without their mark.
        bare = [re.escape(text) for name in self.schemas for text in self.calling.style.bare(name)]
        first = r"[ \n]*" if self.calling.style.bare_first else r"(.|\n)*"
        # FREE is any text that begins no call: `~/.../` excludes the matches of a regular expression.
        free = [f"~/{first}({'|'.join(bare)})(.|\\n)*/"] if bare else []
        # A mark that is one token cannot come out of FREE text; one that is spelled must be excluded from it.
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
        """Return the grammar of the text after the header of a call."""
        end = "" if self.calling.style.end in self.ends else self.calling.style.end
        return "\n".join([f"start: {self._spelled('', 'arguments_0', end)}", *self._arguments(name, 0)])

    @property
    def _more(self) -> str:
        """Further calls after the first, as a part of a rule."""
        between = self.calling.style.between
        return "" if between is None or self.calling.single else f" ({self._spelled(between)} call)*"

    def _lines(self, *start: str, prefix: str = "", behind: str = "") -> str:
        """Return the start rules and all rules that they need."""
        names = [tool["function"]["name"] for tool in self.calling.tools]
        lines = list(start)
        # `call_rest` is a call without the prefix that the prompt has, `behind` one without its mark.
        for rule, spelled in (("call_rest", prefix), ("behind", behind), ("call", "")):
            if not re.search(rf"\b{rule}\b", start[0]):
                continue
            # The prompt may already have named the tool.
            may = [number for number, name in enumerate(names) if self.calling.style.opening(name).startswith(spelled)]
            lines.append(f"{rule}: " + " | ".join(f"{rule}_{number}" for number in may))
            lines += [f"{rule}_{number}: {self._call(names[number], number, spelled)}" for number in may]
        for number, name in enumerate(names):
            lines += self._arguments(name, number)
        return "\n".join(lines)

    def _call(self, name: str, number: int, prefix: str) -> str:
        """Return the rule of a call of a tool, without the prefix that is there already."""
        style = self.calling.style
        head = style.opening(name)
        before, behind = style.notation.around
        end = "" if style.end in self.ends else style.end
        return self._spelled(head[len(prefix) :] + before, f"arguments_{number}", behind + end)

    def _arguments(self, name: str, number: int) -> list[str]:
        """Return the rules of a tool's arguments."""
        notation, schema = self.calling.style.notation, self.schemas.get(name)
        if notation.braces:
            braces = Braces(f"braced_{number}", schema or {}, self._spelled, self._until, json_rule)
            return [f"arguments_{number}: {braces.body(schema)}", *braces.lines]
        if not notation.parameter:
            return [f"arguments_{number}: {json_rule({'type': 'object'} if schema is None else closed(schema))}"]
        properties = None if schema is None else schema.get("properties", {})
        if schema is None or not isinstance(properties, dict) or not all(map(KEY.fullmatch, properties)):
            sign, _, rest = notation.parameter[0].partition("{}")
            value, lines = self._until(notation.parameter[1], f"any_{number}")
            key = f'key_{number}: /[^<>\\n"]{{1,256}}/'
            return [f"arguments_{number}: ({self._spelled(sign, f'key_{number}', rest)} {value})*", key, *lines]
        required, lines, whole = list_of(schema, "required"), list[str](), list[str]()
        for index, (key, value) in enumerate(properties.items()):
            rule = f"arguments_{number}_{index}"
            lines += self._parameter(rule, key, value, schema)
            whole.append(rule if key in required else f"{rule}?")
        return [f"arguments_{number}: {' '.join(whole) or self._spelled('')}", *lines]

    def _parameter(self, rule: str, key: str, schema: Any, root: Mapping[str, Any]) -> list[str]:
        """Return the rules of a parameter between tags: strings as they are, other types as JSON."""
        notation = self.calling.style.notation
        head, end = notation.parameter[0].format(key), notation.parameter[1]
        target = resolved(schema, root)
        types, known = types_of(target), target if isinstance(target, dict) else {}
        words = list_of(known, "enum") or ([known["const"]] if "const" in known else [])
        if words and all(isinstance(word, str) for word in words):
            return [f"{rule}: " + " | ".join(self._spelled(head + word + end) for word in words)]
        if not words and (not types or "string" in types):
            value, lines = self._until(end, f"{rule}_text")
            return [f"{rule}: {self._spelled(head)} {value}", *lines]
        # The parameter's schema stands alone in the grammar, so the definitions it refers to have to come along.
        shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
        value = json_rule({**shared, **known})
        return [f"{rule}: {self._spelled(head, f'{rule}_json', end)}", f"{rule}_json: {value}"]

    def _until(self, end: str, rule: str) -> tuple[str, list[str]]:
        """Return an expression for text up to the first occurrence of its end, and the rules for it."""
        if end in self.special:
            return f"{rule} {self._spelled(end)}", [f"{rule}: {ANYTHING}"]
        return rule, [f"{rule}[suffix={json.dumps(end)}]: {ANYTHING}"]

    def _spelled(self, *texts: str) -> str:
        """Return an expression for texts and names of rules, alternating; special tokens by their ids."""
        # Special tokens in these texts.
        marks = [text for text in self.special if any(text in part for part in texts[::2])]
        longest_first = sorted(marks, key=len, reverse=True)
        pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if marks else None
        terms = list[str]()
        for place, part in enumerate(texts):
            if place % 2:
                terms.append(part)
                continue
            for piece in pattern.split(part) if pattern else [part]:
                if piece:
                    terms.append(f"<[{self.special[piece]}]>" if piece in self.special else json.dumps(piece))
        return " ".join(terms) or '""'


OPEN = ("additionalProperties", "unevaluatedProperties", "patternProperties", "allOf", "anyOf", "oneOf", "if", "$ref")
"""Keys by which a schema allows more properties than it lists, or none."""


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose object has only the properties it lists, unless it says otherwise.

    A tool expects no others, and small models generate them without end.

    >>> closed({"properties": {"a": {}}})["additionalProperties"]
    False
    """
    # Nothing in it speaks of further properties.
    alone = "properties" in schema and not any(key in schema for key in OPEN)
    return {**schema, "additionalProperties": False} if alone else dict(schema)


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return the expression for JSON of a schema, on one line."""
    return f"%json {json.dumps({**schema, 'x-guidance': ONE_LINE}, ensure_ascii=False)}"
