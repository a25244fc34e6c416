"""What a request asks of thinking, and what else it tells the chat template: fields of vLLM's and llama-server's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sp.chat import Thinking
from sp.chat.thinking import EFFORT, SWITCHES
from sp.errors import ConfigError
from sp.gguf import ChatTemplate
from sp.serve.fields import MAX_NAME, RequestError, shown, text_of, typed

KWARGS = "chat_template_kwargs"
LONGEST_KWARGS = 1 << 16
RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
"""Variables that are not a request's to set."""


@dataclass(frozen=True)
class TemplateRequest:
    """What the template is to be told."""

    thinking: Thinking = field(default_factory=Thinking)  # the server's, with what the request changes
    variables: Mapping[str, Any] = field(default_factory=dict)  # the rest of `chat_template_kwargs`
    param: str | None = None  # the field by which the request asked for thinking; None if it did not

    def told(self, template: ChatTemplate) -> dict[str, Any]:
        """All variables; RequestError for what the template does not read."""
        for name in self.variables:
            if name not in template.names:
                where = f"{KWARGS}.{name}"
                raise RequestError(f"the chat template of this model does not read {where}; leave it out", where)
        if self.param and (note := self.thinking.note(template)):
            raise RequestError(f"{note}; leave {self.param} out", self.param)
        return {**self.variables, **self.thinking.told(template)}


def template_request(body: Mapping[str, Any], default: Thinking) -> TemplateRequest:
    """The fields ``chat_template_kwargs`` and ``reasoning_effort`` of a body, checked."""
    kwargs = dict(typed(body, KWARGS, (dict, type(None)), "an object such as {'enable_thinking': false}") or {})
    if len(json.dumps(kwargs, ensure_ascii=False)) > LONGEST_KWARGS:
        raise RequestError(f"{KWARGS} has more than {LONGEST_KWARGS} characters; send less", KWARGS)
    text_of(json.dumps(kwargs, ensure_ascii=False), KWARGS)
    thinking, param = default, None
    for name in SWITCHES:
        if name in kwargs:
            value, param = kwargs.pop(name), f"{KWARGS}.{name}"
            if not isinstance(value, bool):
                raise RequestError(f"{param} is {shown(value)}; send true or false", param)
            thinking = replace(thinking, mode="on" if value else "off")
    efforts = [(f"{KWARGS}.{EFFORT}", kwargs.pop(EFFORT, None)), (EFFORT, body.get(EFFORT))]
    for where, value in efforts:
        if value is not None:
            try:
                thinking, param = replace(thinking, effort=text_of(value, where)), where
            except ConfigError as error:
                raise RequestError(f"{where}: {error}", where) from None
    for name in kwargs:
        where = f"{KWARGS}.{name[:MAX_NAME]}"
        if name in RESERVED:
            raise RequestError(f"{where} is not a request's to set; leave it out", where)
    return TemplateRequest(thinking, kwargs, param)
