"""Grammar of call arguments written as objects with bare keys and strings between marks of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from sp.chat.calls import QUOTE, list_of, resolved, types_of

BARE = re.compile(r"[^\s{}\[\],:\"]{1,256}")  # a key
JSON_TYPES = ("integer", "number", "boolean", "null")  # types with the same notation as in JSON


class Braces:
    """Rules of one tool's arguments. Enforced are types, `enum` and `const`, required keys, and bounds of numbers.

    Parameters
    ----------
    rule : str
        Prefix of the names of rules.
    root : mapping
        The whole schema.
    spelled, until, json_rule : callable
        Return texts as they are in the grammar; text up to a mark, and the rules for it; JSON of a schema.

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
        self._count, self._known = 0, dict[int | str, str]()  # rules by schema or kind; schemas may be recursive

    def body(self, schema: Any) -> str:
        """Return the rule for the text between the braces of an object."""
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        # Keys that cannot be written bare cannot be enforced.
        if not isinstance(properties, Mapping) or not all(map(BARE.fullmatch, properties)):
            return self._any("body")
        # Keys come in the order of the schema, so the rules are built from the last key to the first: each in two
        # variants, with a comma before it if another key precedes it.
        rest = dict.fromkeys((False, True), self._add(self._spelled("")))
        for key, inner in reversed(list(properties.items())):
            value, now = self._value(inner), dict[bool, str]()
            for has_previous in (False, True):
                item = f"{self._spelled(',' * has_previous + key + ':')} {value} {rest[True]}"
                optional = key not in list_of(schema, "required")
                now[has_previous] = self._add(f"{item} | {rest[has_previous]}" if optional else item)
            rest = now
        return rest[False]

    def _value(self, schema: Any) -> str:
        """Return the rule for a value."""
        inner = resolved(schema, self._root)
        if not isinstance(inner, Mapping) or "allOf" in inner:
            return self._any("value")
        if id(inner) not in self._known:
            # The name is known before the rule is built, so that a recursive schema refers to itself.
            name = self._known[id(inner)] = self._new()
            self.lines.append(f"{name}: {' | '.join(self._options(inner))}")
        return self._known[id(inner)]

    def _options(self, schema: Mapping[str, Any]) -> list[str]:
        words = list_of(schema, "enum") or ([schema["const"]] if "const" in schema else [])
        if words and not any(isinstance(word, Mapping | list) for word in words):
            texts = (QUOTE + word + QUOTE if isinstance(word, str) else json.dumps(word) for word in words)
            return [self._spelled(text) for text in texts]
        if either := list_of(schema, "anyOf") or list_of(schema, "oneOf"):
            return [self._value(option) for option in either]
        # Objects often omit their type.
        types = types_of(schema) or ({"object"} if "properties" in schema else frozenset())
        options = [self._any("string")] if "string" in types else []
        options += [f'"{{" {self.body(schema)} "}}"'] if "object" in types else []
        if "array" in types:
            item = self._value(schema.get("items"))
            options.append(f'"[" ({item} ("," {item})*)? "]"')
        if plain := sorted(types & {*JSON_TYPES}):
            options.append(self._add(self._json({**schema, "type": plain if plain[1:] else plain[0]})))
        return options or [self._any("value")]

    def _any(self, kind: str) -> str:
        """Return the rule for any string, any value, or the text between the braces of any object."""
        if kind not in self._known:
            name = self._known[kind] = self._new()
            if kind == "string":
                text, lines = self._until(QUOTE, f"{name}_text")
                self.lines += [f"{name}: {self._spelled(QUOTE)} {text}", *lines]
            elif kind == "value":
                value, plain = name, self._add(self._json({"type": [*JSON_TYPES]}))
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
