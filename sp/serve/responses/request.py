"""Requests of OpenAI's Responses API, translated to chats; what has no equivalent is ignored and reported, or refused.

Nothing is stored between requests but the caches of sessions: the client sends the whole conversation each time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sp.chat import Thinking
from sp.chat.messages import describe_value
from sp.chat.reasoning import EFFORT
from sp.errors import ConfigError, unknown_name
from sp.gguf import ChatTemplate
from sp.serve.fields import BIAS, MAX_NAME, NUMBERS, PARAM, RequestError, not_null, text_of, typed
from sp.serve.options import Defaults
from sp.serve.protocol import KWARGS, CompletionJob, ignored_lines, parse_request
from sp.serve.responses.turns import ItemChatBuilder, flat, part_of, results_of, shows_later

SHARED_FIELDS = ("model", "stream", "stop", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "user",
                 "sp", KWARGS, BIAS, *(name for name in NUMBERS if name != "n"))  # fmt: skip
"""Fields with the same name and meaning in a chat."""
TRANSLATED_FIELDS = ("input", "instructions", "tools", "tool_choice", "max_output_tokens", "text", "reasoning",
                     "include", "top_logprobs")  # fmt: skip
"""Fields that are translated."""
SILENT_FIELDS = ("store", "metadata", "service_tier", "stream_options", "truncation", "prompt_cache_retention",
                 "background", "client_metadata")  # fmt: skip
"""Fields without effect here that are not reported."""
NOT_STORED = "the server stores no {}; send the whole conversation as input"
REFUSED_FIELDS = {
    "previous_response_id": NOT_STORED.format("responses"),
    "conversation": NOT_STORED.format("conversations"),
    "prompt": "the server stores no prompts; send instructions and input",
}
LOGPROBS = "message.output_text.logprobs"
MOST_ITEMS = 4096
FIELD_NAMES = re.compile(r"messages\[\d+\](?:\.tool_calls\[\d+\](?:\.function)?)?|tools\[\d+\](?:\.function)?|"
                         r"\b[a-z_]+(?:\.json_schema)?")  # fmt: skip
"""Names of a chat's fields in the text of an error."""


PlacedFunction = tuple[str, str | None, dict[str, Any]]
"""The place of a function in the request, its namespace, and the tool itself."""


@dataclass
class ResponsesRequest:
    """A request, translated to a chat.

    Parameters
    ----------
    body : dict
        As ``/v1/chat/completions`` takes it.
    echo : dict
        Fields of the request that its answer repeats.
    ignored : list of str
        A line for each part of the request without effect.
    places : dict
        Places in the request, by the name of what `body` has from there.
    spaces : dict
        Namespace and name of the functions of namespaces, by the name that the model is shown.

    Examples
    --------
    >>> parsed = ResponsesRequest.of({"input": "Who?", "instructions": "Be brief.", "max_output_tokens": 9, "depth": 3})
    >>> parsed.body["messages"][0]
    {'role': 'system', 'content': [{'type': 'text', 'text': 'Be brief.'}]}
    >>> parsed.body["messages"][1], parsed.body["max_tokens"], parsed.ignored
    ({'role': 'user', 'content': 'Who?'}, 9, ['depth: unknown field'])
    """

    body: dict[str, Any] = field(default_factory=dict)
    echo: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    spaces: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, fields: Mapping[str, Any], defaults: Defaults | None = None, template: ChatTemplate | None = None
    ) -> ResponsesRequest:
        """Translate a body. `defaults`: options of the server; `template`: the target's, to know whether it reads an
        effort.

        RequestError: for fields that need stored responses, and for items that are invalid.
        """
        defaults = defaults or Defaults()
        fields = not_null(fields)
        for name, why in REFUSED_FIELDS.items():
            if name in fields:
                raise RequestError(f"{name} is not supported: {why}", name)
        if fields.get("background") not in (None, False):
            raise RequestError(
                "background is not supported: clients wait for their answers; leave it out", "background"
            )
        request = cls({name: fields[name] for name in SHARED_FIELDS if name in fields})
        for name in fields:
            if name not in (*SHARED_FIELDS, *TRANSLATED_FIELDS, *SILENT_FIELDS):
                if defaults.strict_fields:
                    raise RequestError(
                        str(unknown_name("field", name[:MAX_NAME], (*SHARED_FIELDS, *TRANSLATED_FIELDS))),
                        name[:MAX_NAME],
                    )
                request.ignored.append(f"{name[:MAX_NAME]}: unknown field")
        request._tools(fields)
        request._messages(fields, template)
        request._rest(fields, defaults.thinking, template)
        request._echo(fields)
        return request

    def job(self, defaults: Defaults, checked: Callable[[CompletionJob], CompletionJob]) -> CompletionJob:
        """Return the job for the worker. `checked`: may refuse the job or change it. RequestError: with the request's
        own names.
        """
        with self.own_field_names():
            job = checked(parse_request("chat", self.body, defaults))
        return replace(job, ignored=ignored_lines([*self.ignored, *(self._name(line) for line in job.ignored)]))

    @contextmanager
    def own_field_names(self) -> Iterator[None]:
        """Translate errors that are raised inside to the request's own field names."""
        try:
            yield
        except RequestError as error:
            raise self.translated(error) from None

    def translated(self, error: RequestError) -> RequestError:
        """Return an error with the names of the request's own fields."""
        param = None if error.param is None else self._name(error.param)
        return RequestError(self._name(str(error)), param, status=error.status, code=error.code)

    def _name(self, text: str) -> str:
        """Replace the field names of a chat in a text by the request's own."""
        known = {**OWN_NAMES, **self.places}
        return FIELD_NAMES.sub(lambda match: known.get(match[0].removesuffix(".function"), match[0]), text)

    def _messages(self, fields: Mapping[str, Any], template: ChatTemplate | None) -> None:
        """Translate items to messages: successive reasoning, text and calls of the assistant become one turn, with the
        results directly after it.
        """
        tools = self.body.get("tools") and self.body.get("tool_choice") != "none"
        items, whole = fields.get("input"), isinstance(fields.get("input"), str)
        if whole:
            items = [{"role": "user", "content": items}]
        if not isinstance(items, list) or not 1 <= len(items) <= MOST_ITEMS:
            raise RequestError(f"input must be a text, or a list of 1 to {MOST_ITEMS} items", "input")
        builder = ItemChatBuilder(
            self.places, results_of(items), lambda: template is None or shows_later(template, bool(tools))
        )
        if "instructions" in fields:
            builder.add_system([part_of(text_of(fields["instructions"], "instructions"))], "instructions")
        for index, item in enumerate(items):
            where = "input" if whole else f"input[{index}]"
            if note := builder.add(item, where):
                self.ignored.append(note)
        builder.end_turn()
        if not builder.messages:
            raise RequestError("input has no message; send one", "input")
        self.body["messages"] = builder.messages

    def _tools(self, fields: Mapping[str, Any]) -> None:
        """Translate the tools that the model is shown, and the choice among them."""
        tools, choice = typed(fields, "tools", (list, type(None)), "a list of tools") or [], fields.get("tool_choice")
        names = None
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            allowed = choice.get("tools") if isinstance(choice.get("tools"), list) else []
            names = [tool.get("name") for tool in allowed or [] if isinstance(tool, dict)]
            choice = choice.get("mode", "auto")
        functions: list[dict[str, Any]] = []
        self.echo["tools"] = []
        for where, space, tool in self._functions_of(tools):
            name = flat(space, tool.get("name"))
            function = tool.get("function", {key: tool[key] for key in FUNCTION if key in tool} | {"name": name})
            if names is None or not isinstance(function, dict) or tool.get("name") in names:
                self.places[f"tools[{len(functions)}]"] = where
                self.spaces |= {} if space is None or not isinstance(name, str) else {name: (space, tool["name"])}
                functions.append({"type": "function", "function": function})
                if space is None and isinstance(function, dict):
                    echoed = {"type": "function", "parameters": None, "strict": None, **function}
                    self.echo["tools"].append(echoed)
        if isinstance(choice, dict) and choice.get("type") == "function":
            name = flat(choice.get("namespace"), choice.get("name"))
            choice = {"type": "function", "function": {"name": name}}
        elif isinstance(choice, dict):
            self.ignored.append(f"tool_choice: of type {describe_value(choice.get('type'))}")
            choice, self.echo["tool_choice"] = None, "auto"
        if choice == "auto" or (choice == "none" and not functions):
            choice = None
        self.body |= {name: value for name, value in (("tools", functions), ("tool_choice", choice)) if value}

    def _functions_of(self, tools: list[Any], within: str = "", space: str | None = None) -> Iterator[PlacedFunction]:
        """Yield functions, also those in namespaces. Other tools, which OpenAI's servers run, are not shown to the
        model.
        """
        for index, tool in enumerate(tools):
            where, kind = f"{within}tools[{index}]", tool.get("type") if isinstance(tool, dict) else None
            if not isinstance(tool, dict) or not isinstance(kind, str):
                raise RequestError(f"{where} has no type; send {{'type': 'function', 'name': 'look', ...}}", where)
            inner = tool.get("tools")
            if kind == "function":
                yield where, space, tool
            elif kind == "namespace" and space is None and isinstance(inner, list):
                yield from self._functions_of(inner, f"{where}.", text_of(tool.get("name"), f"{where}.name"))
                self.echo["tools"].append(tool)
            else:
                self.ignored.append(f"{where}: tools of type {kind[:MAX_NAME]} are not shown to the model")

    def named_call(self, name: str) -> dict[str, str]:
        """Return the name, and the namespace if any, that the request has for a called function."""
        space, own = self.spaces.get(name, (None, name))
        return {"name": own} if space is None else {"name": own, "namespace": space}

    def _rest(self, fields: Mapping[str, Any], thinking: Thinking, template: ChatTemplate | None) -> None:
        """Translate length, format, thinking and log probabilities."""
        self.body["max_tokens"] = fields.get(
            "max_output_tokens", -1
        )  # -1: no limit, which agents mean when they send none
        text = typed(fields, "text", (dict, type(None)), "an object such as {'format': {'type': 'text'}}") or {}
        form = text.get("format")
        if isinstance(form, dict) and form.get("type") == "json_schema":
            inner = {name: value for name, value in form.items() if name != "type"}
            form = {"type": "json_schema", "json_schema": inner}
        if form is not None:
            self.body[PARAM] = form
        self.ignored += [f"text.{name[:MAX_NAME]}: has no effect" for name in text if name != "format"]
        reasoning = typed(fields, "reasoning", (dict, type(None)), "an object such as {'effort': 'low'}") or {}
        if (effort := reasoning.get("effort")) is not None:
            if note := _lost(effort, thinking, template):
                self.ignored.append(f"reasoning.effort: {note}")
            else:
                self.body[EFFORT] = effort
        include = typed(fields, "include", (list, type(None)), "a list of names") or []
        if LOGPROBS in include or fields.get("top_logprobs"):
            self.body |= {"logprobs": True, "top_logprobs": fields.get("top_logprobs", 0)}

    def _echo(self, fields: Mapping[str, Any]) -> None:
        """Collect the fields of the reply that repeat the request; the client's library requires most of them."""
        choice, text, metadata = fields.get("tool_choice", "auto"), fields.get("text"), fields.get("metadata", {})
        self.echo = {
            "tool_choice": choice,
            **self.echo,
            "background": False,
            "instructions": fields.get("instructions"),
            "max_output_tokens": fields.get("max_output_tokens"),
            "metadata": metadata if isinstance(metadata, dict) else {},
            "parallel_tool_calls": fields.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "prompt_cache_key": fields.get("prompt_cache_key"),
            "reasoning": {"effort": None, "summary": None, **fields.get("reasoning", {})},
            "safety_identifier": fields.get("safety_identifier"),
            "service_tier": "default",
            "store": False,
            "temperature": fields.get("temperature"),
            "text": text if text and text.get("format") else {"format": {"type": "text"}, **(text or {})},
            "top_logprobs": fields.get("top_logprobs"),
            "top_p": fields.get("top_p"),
            "truncation": "disabled",
            "user": fields.get("user"),
        }
        for name, value in self.echo.items():
            text_of(json.dumps(value, ensure_ascii=False), name)  # the reply repeats it, so that it must be valid UTF-8


FUNCTION = ("name", "description", "parameters", "strict")
OWN_NAMES = {
    f"{PARAM}.json_schema": "text.format",
    PARAM: "text.format",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    EFFORT: "reasoning.effort",
    "messages": "input",
}
"""Names of a chat's fields, and the request's own."""


def _lost(effort: Any, thinking: Thinking, template: ChatTemplate | None) -> str | None:
    """Return the reason why an effort has no effect with this model; None if it has one. Clients send an effort to any
    model.
    """
    try:
        return replace(thinking, effort=effort).note(template) if isinstance(effort, str) else None
    except ConfigError:
        return None  # refused where the field is parsed
