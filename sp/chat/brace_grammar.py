"""Arguments of calls as objects of bare keys, whose strings stand between marks of their own, as a grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from sp.chat.calls import QUOTE, listed, resolved, types_of

BARE = re.compile(r"[^\s{}\[\],:\"]{1,256}")  # a key
ALIKE = ("integer", "number", "boolean", "null")  # types that are written as in JSON


class Braces:
    """Rules of one tool's arguments. Held are types, `enum` and `const`, what is required, and bounds of numbers.

    Parameters
    ----------
    rule : str
        With which names of rules begin.
    root : mapping
        The whole schema.
    spelled, until, json_rule : callable
        Texts in the grammar; text up to a mark, and the rules for that; JSON of a schema.

    Examples
    --------
    >>> braces = Braces("a", {}, json.dumps, lambda end, rule: (rule, []), json.dumps)
    >>> braces.body({"properties": {"b": {"type": "null"}}, "required": ["b"]})
    'a_4'
    >>> print(*braces.lines, sep="; ")
    a_1: ""; a_3: {"type": "null"}; a_2: a_3; a_4: "b:" a_2 a_1; a_5: ",b:" a_2 a_1
    """

    def __init__(
        self,
        rule: str,
        root: Mapping[str, Any],
        spelled: Callable[[str], str],
        until: Callable[[str, str], tuple[str, list[str]]],
        json_rule: Callable[[Mapping[str, Any]], str],
    ) -> None:
        self.lines: list[str] = []
        self._rule, self._root, self._spelled, self._until, self._json = rule, root, spelled, until, json_rule
        self._count, self._known = 0, dict[int | str, str]()  # rules of parts of the schema, which may hold themselves

    def body(self, schema: Any) -> str:
        """The rule for what stands between the braces of an object."""
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(properties, Mapping) or not all(map(BARE.fullmatch, properties)):
            return self._any("body")
        rest = dict.fromkeys((False, True), self._add(self._spelled("")))  # by whether a key stands before it
        for key, inner in reversed(list(properties.items())):
            value, now = self._value(inner), dict[bool, str]()
            for begun in (False, True):
                item = f"{self._spelled(',' * begun + key + ':')} {value} {rest[True]}"
                now[begun] = self._add(item if key in listed(schema, "required") else f"{item} | {rest[begun]}")
            rest = now
        return rest[False]

    def _value(self, schema: Any) -> str:
        """The rule for a value."""
        found = resolved(schema, self._root)
        if not isinstance(found, Mapping) or "allOf" in found:
            return self._any("value")
        if id(found) not in self._known:
            name = self._known[id(found)] = self._new()
            self.lines.append(f"{name}: {' | '.join(self._options(found))}")
        return self._known[id(found)]

    def _options(self, schema: Mapping[str, Any]) -> list[str]:
        words = listed(schema, "enum") or ([schema["const"]] if "const" in schema else [])
        if words and not any(isinstance(word, Mapping | list) for word in words):
            texts = (QUOTE + word + QUOTE if isinstance(word, str) else json.dumps(word) for word in words)
            return [self._spelled(text) for text in texts]
        if either := listed(schema, "anyOf") or listed(schema, "oneOf"):
            return [self._value(each) for each in either]
        types = types_of(schema) or ({"object"} if "properties" in schema else frozenset())
        options = [self._any("string")] if "string" in types else []
        options += [f'"{{" {self.body(schema)} "}}"'] if "object" in types else []
        if "array" in types:
            item = self._value(schema.get("items"))
            options.append(f'"[" ({item} ("," {item})*)? "]"')
        if alike := sorted(types & {*ALIKE}):
            options.append(self._add(self._json({**schema, "type": alike if alike[1:] else alike[0]})))
        return options or [self._any("value")]

    def _any(self, kind: str) -> str:
        """The rule for a string, any value, or what may stand between the braces of any object."""
        if kind not in self._known:
            name = self._known[kind] = self._new()
            if kind == "string":
                text, lines = self._until(QUOTE, f"{name}_text")
                self.lines += [f"{name}: {self._spelled(QUOTE)} {text}", *lines]
            elif kind == "value":
                value, plain = name, self._add(self._json({"type": [*ALIKE]}))
                inner = [f'"[" ({value} ("," {value})*)? "]"', f'"{{" {self._any("body")} "}}"']
                self.lines.append(f"{name}: " + " | ".join([self._any("string"), plain, *inner]))
            else:
                key = f"{name}_key"
                pair = f'{key} ":" {self._any("value")}'
                self.lines += [f'{name}: ({pair} ("," {pair})*)?', f"{key}: /{BARE.pattern}/"]
        return self._known[kind]

    def _new(self) -> str:
        self._count += 1
        return f"{self._rule}_{self._count}"

    def _add(self, rule: str) -> str:
        name = self._new()
        self.lines.append(f"{name}: {rule}")
        return name
