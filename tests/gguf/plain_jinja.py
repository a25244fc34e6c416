"""Chat templates rendered with nothing of ours: the oracle of the sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment


class Generation(Extension):
    """The block as transformers reads it: a call of a function that hands the body on."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

    def body(self, caller: Callable[[], str]) -> str:
        return caller()


def plain_render(template: str, **variables: Any) -> str:
    """The options of transformers in Jinja's own sandbox with nothing of ours, and lists that grow: the oracle."""

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda directives: datetime.now().strftime(directives)
    return environment.from_string(template).render(**variables)
