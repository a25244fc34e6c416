"""Requests of OpenAI's Responses clients, in the words of a chat; what a chat has no word for is told, or refused.

Nothing is kept between requests but what sessions know of a text: the client sends the whole conversation each time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sp.chat import Thinking
from sp.chat.reasoning import EFFORT
from sp.errors import ConfigError, unknown_name
from sp.gguf import ChatTemplate
from sp.serve.fields import BIAS, MAX_NAME, NUMBERS, PARAM, RequestError, not_null, shown, text_of, typed
from sp.serve.options import Defaults
from sp.serve.protocol import KWARGS, Job, parse_request, told
from sp.serve.responses.turns import Turns, flat, part_of, results_of, shows_later

SAME = ("model", "stream", "stop", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "user", "sp", KWARGS,
        BIAS, *(name for name in NUMBERS if name != "n"))  # fmt: skip
"""Fields that a chat has by the same name."""
OTHER = ("input", "instructions", "tools", "tool_choice", "max_output_tokens", "text", "reasoning", "include",
         "top_logprobs")  # fmt: skip
"""Fields that are put in other words."""
QUIET = ("store", "metadata", "service_tier", "stream_options", "truncation", "prompt_cache_retention", "background",
         "client_metadata")  # fmt: skip
"""Fields that change nothing here, of which a client need not be told."""
KEPT = "the server keeps no {}; send the whole conversation as input"
REFUSED = {
    "previous_response_id": KEPT.format("responses"),
    "conversation": KEPT.format("conversations"),
    "prompt": "the server keeps no prompts; send instructions and input",
}
LOGPROBS = "message.output_text.logprobs"
MOST_ITEMS = 4096
CALLED = re.compile(r"messages\[\d+\](?:\.tool_calls\[\d+\](?:\.function)?)?|tools\[\d+\](?:\.function)?|"
                    r"\b[a-z_]+(?:\.json_schema)?")  # fmt: skip
"""Fields of a chat in the text of an error."""


Shown = tuple[str, str | None, dict[str, Any]]
"""Where a function stands, the namespace it is of, and the tool itself."""


@dataclass
class Asked:
    """A request in the words of a chat.

    Parameters
    ----------
    body : dict
        As ``/v1/chat/completions`` takes it.
    echo : dict
        Fields of the request that its answer repeats.
    ignored : list of str
        What is not heeded, a line each.
    places : dict
        Where in the request something of `body` stood.
    spaces : dict
        Namespace and name of the functions of namespaces, by the name that the model is shown.

    Examples
    --------
    >>> asked = Asked.of({"input": "Who?", "instructions": "Be brief.", "max_output_tokens": 9, "depth": 3})
    >>> asked.body["messages"][0]
    {'role': 'system', 'content': [{'type': 'text', 'text': 'Be brief.'}]}
    >>> asked.body["messages"][1], asked.body["max_tokens"], asked.ignored
    ({'role': 'user', 'content': 'Who?'}, 9, ['depth: unknown field'])
    """

    body: dict[str, Any] = field(default_factory=dict)
    echo: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    spaces: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, given: Mapping[str, Any], defaults: Defaults | None = None, template: ChatTemplate | None = None
    ) -> Asked:
        """What a body asks for. `defaults`: the server's; `template`: its target's, to know whether an effort can be
        asked for. RequestError: for what needs a memory of other requests, and for items that are none.
        """
        defaults = defaults or Defaults()
        given = not_null(given)
        for name, why in REFUSED.items():
            if name in given:
                raise RequestError(f"{name} is not supported: {why}", name)
        if given.get("background") not in (None, False):
            raise RequestError(
                "background is not supported: the client waits for its answer; leave it out", "background"
            )
        asked = cls({name: given[name] for name in SAME if name in given})
        for name in given:
            if name not in (*SAME, *OTHER, *QUIET):
                if defaults.strict_fields:
                    raise RequestError(str(unknown_name("field", name[:MAX_NAME], (*SAME, *OTHER))), name[:MAX_NAME])
                asked.ignored.append(f"{name[:MAX_NAME]}: unknown field")
        asked._tools(given)
        asked._messages(given, template)
        asked._rest(given, defaults.thinking, template)
        asked._echo(given)
        return asked

    def job(self, defaults: Defaults, checked: Callable[[Job], Job]) -> Job:
        """What the worker is to do; `checked` may refuse or change it. RequestError: in the words of the request."""
        with self.named():
            job = checked(parse_request("chat", self.body, defaults))
        return replace(job, ignored=told([*self.ignored, *(self._name(each) for each in job.ignored)]))

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors that come out of this speak of the request's own fields."""
        try:
            yield
        except RequestError as error:
            raise self.told(error) from None

    def told(self, error: RequestError) -> RequestError:
        """An error in the words of the request."""
        param = None if error.param is None else self._name(error.param)
        return RequestError(self._name(str(error)), param, status=error.status, code=error.code)

    def _name(self, said: str) -> str:
        """A text that speaks of a chat's fields, with the request's own names for them."""
        known = {**WORDS, **self.places}
        return CALLED.sub(lambda found: known.get(found[0].removesuffix(".function"), found[0]), said)

    def _messages(self, given: Mapping[str, Any], template: ChatTemplate | None) -> None:
        """Items become turns: of an assistant's reasoning, text and calls one turn, its results directly behind it."""
        tools = self.body.get("tools") and self.body.get("tool_choice") != "none"
        items, whole = given.get("input"), isinstance(given.get("input"), str)
        if whole:
            items = [{"role": "user", "content": items}]
        if not isinstance(items, list) or not 1 <= len(items) <= MOST_ITEMS:
            raise RequestError(f"input must be a text, or a list of 1 to {MOST_ITEMS} items", "input")
        turns = Turns(self.places, results_of(items), lambda: template is None or shows_later(template, bool(tools)))
        if "instructions" in given:
            turns.system([part_of(text_of(given["instructions"], "instructions"))], "instructions")
        for index, item in enumerate(items):
            where = "input" if whole else f"input[{index}]"
            if note := turns.take(item, where):
                self.ignored.append(note)
        turns.end()
        if not turns.messages:
            raise RequestError("input has no message; send one", "input")
        self.body["messages"] = turns.messages

    def _tools(self, given: Mapping[str, Any]) -> None:
        """The functions that the model is shown, and how it may call them."""
        tools, choice = typed(given, "tools", (list, type(None)), "a list of tools") or [], given.get("tool_choice")
        names = None
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            allowed = choice.get("tools") if isinstance(choice.get("tools"), list) else []
            names = [each.get("name") for each in allowed or [] if isinstance(each, dict)]
            choice = choice.get("mode", "auto")
        found: list[dict[str, Any]] = []
        self.echo["tools"] = []
        for where, space, tool in self._each(tools):
            name = flat(space, tool.get("name"))
            function = tool.get("function", {key: tool[key] for key in FUNCTION if key in tool} | {"name": name})
            if names is None or not isinstance(function, dict) or tool.get("name") in names:
                self.places[f"tools[{len(found)}]"] = where
                self.spaces |= {} if space is None or not isinstance(name, str) else {name: (space, tool["name"])}
                found.append({"type": "function", "function": function})
                if space is None and isinstance(function, dict):
                    kept = {"type": "function", "parameters": None, "strict": None, **function}
                    self.echo["tools"].append(kept)
        if isinstance(choice, dict) and choice.get("type") == "function":
            name = flat(choice.get("namespace"), choice.get("name"))
            choice = {"type": "function", "function": {"name": name}}
        elif isinstance(choice, dict):
            self.ignored.append(f"tool_choice: of type {shown(choice.get('type'))}")
            choice, self.echo["tool_choice"] = None, "auto"
        if choice == "auto" or (choice == "none" and not found):
            choice = None
        self.body |= {name: value for name, value in (("tools", found), ("tool_choice", choice)) if value}

    def _each(self, tools: list[Any], within: str = "", space: str | None = None) -> Iterator[Shown]:
        """Functions, those of namespaces among them; the model is not shown other tools, which OpenAI's servers run."""
        for index, tool in enumerate(tools):
            where, kind = f"{within}tools[{index}]", tool.get("type") if isinstance(tool, dict) else None
            if not isinstance(tool, dict) or not isinstance(kind, str):
                raise RequestError(f"{where} has no type; send {{'type': 'function', 'name': 'look', ...}}", where)
            inner = tool.get("tools")
            if kind == "function":
                yield where, space, tool
            elif kind == "namespace" and space is None and isinstance(inner, list):
                yield from self._each(inner, f"{where}.", text_of(tool.get("name"), f"{where}.name"))
                self.echo["tools"].append(tool)
            else:
                self.ignored.append(f"{where}: tools of type {kind[:MAX_NAME]} are not shown to the model")

    def named_call(self, name: str) -> dict[str, str]:
        """The name of a function that was called, as the request had it."""
        space, own = self.spaces.get(name, (None, name))
        return {"name": own} if space is None else {"name": own, "namespace": space}

    def _rest(self, given: Mapping[str, Any], thinking: Thinking, template: ChatTemplate | None) -> None:
        """Length, format, thinking, log probabilities."""
        self.body["max_tokens"] = given.get("max_output_tokens", -1)  # agents send none, and mean no limit
        text = typed(given, "text", (dict, type(None)), "an object such as {'format': {'type': 'text'}}") or {}
        form = text.get("format")
        if isinstance(form, dict) and form.get("type") == "json_schema":
            inner = {name: value for name, value in form.items() if name != "type"}
            form = {"type": "json_schema", "json_schema": inner}
        if form is not None:
            self.body[PARAM] = form
        self.ignored += [f"text.{name[:MAX_NAME]}: has no effect" for name in text if name != "format"]
        asks = typed(given, "reasoning", (dict, type(None)), "an object such as {'effort': 'low'}") or {}
        if (effort := asks.get("effort")) is not None:
            if note := _lost(effort, thinking, template):
                self.ignored.append(f"reasoning.effort: {note}")
            else:
                self.body[EFFORT] = effort
        include = typed(given, "include", (list, type(None)), "a list of names") or []
        if LOGPROBS in include or given.get("top_logprobs"):
            self.body |= {"logprobs": True, "top_logprobs": given.get("top_logprobs", 0)}

    def _echo(self, given: Mapping[str, Any]) -> None:
        """Fields of the answer that repeat the request; the client's library wants most of them."""
        choice, text, metadata = given.get("tool_choice", "auto"), given.get("text"), given.get("metadata", {})
        self.echo = {
            "tool_choice": choice,
            **self.echo,
            "background": False,
            "instructions": given.get("instructions"),
            "max_output_tokens": given.get("max_output_tokens"),
            "metadata": metadata if isinstance(metadata, dict) else {},
            "parallel_tool_calls": given.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "prompt_cache_key": given.get("prompt_cache_key"),
            "reasoning": {"effort": None, "summary": None, **given.get("reasoning", {})},
            "safety_identifier": given.get("safety_identifier"),
            "service_tier": "default",
            "store": False,
            "temperature": given.get("temperature"),
            "text": text if text and text.get("format") else {"format": {"type": "text"}, **(text or {})},
            "top_logprobs": given.get("top_logprobs"),
            "top_p": given.get("top_p"),
            "truncation": "disabled",
            "user": given.get("user"),
        }
        for name, value in self.echo.items():
            text_of(json.dumps(value, ensure_ascii=False), name)  # an answer must be able to repeat it


FUNCTION = ("name", "description", "parameters", "strict")
WORDS = {
    f"{PARAM}.json_schema": "text.format",
    PARAM: "text.format",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    EFFORT: "reasoning.effort",
    "messages": "input",
}
"""Fields of a chat, and what a request calls them."""


def _lost(effort: Any, thinking: Thinking, template: ChatTemplate | None) -> str | None:
    """Why an effort changes nothing with this model, if so; clients send one to whatever model they talk to."""
    try:
        return replace(thinking, effort=effort).note(template) if isinstance(effort, str) else None
    except ConfigError:
        return None  # which is told where the field is read
