"""Requests of OpenAI's Responses clients, in the words of a chat; what a chat has no word for is told, or refused.

Nothing is kept between requests but what sessions know of a text: the client sends the whole conversation each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sp.chat import Thinking
from sp.chat.reasoning import EFFORT
from sp.errors import ConfigError, unknown_name
from sp.gguf import ChatTemplate
from sp.serve.fields import MAX_NAME, NUMBERS, PARAM, RequestError, shown, text_of, typed
from sp.serve.options import Defaults
from sp.serve.protocol import KWARGS, Job, parse_request, told

SAME = ("model", "stream", "stop", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "user", "sp", KWARGS,
        *(name for name in NUMBERS if name != "n"))  # fmt: skip
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
TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
LOGPROBS = "message.output_text.logprobs"
MOST_ITEMS = 4096
CALLED = re.compile(r"messages\[\d+\](?:\.tool_calls\[\d+\](?:\.function)?)?|tools\[\d+\](?:\.function)?|"
                    r"\b[a-z_]+(?:\.json_schema)?")  # fmt: skip
"""Fields of a chat in the text of an error."""


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

    @classmethod
    def of(
        cls, given: Mapping[str, Any], defaults: Defaults | None = None, template: ChatTemplate | None = None
    ) -> Asked:
        """What a body asks for. `defaults`: the server's; `template`: its target's, to know whether an effort can be
        asked for. RequestError: for what needs a memory of other requests, and for items that are none.
        """
        defaults = defaults or Defaults()
        given = {name: value for name, value in given.items() if value is not None}
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
        asked._messages(given)
        asked._tools(given)
        asked._rest(given, defaults.thinking, template)
        asked._echo(given)
        return asked

    def job(self, defaults: Defaults, check: Callable[[Job], None]) -> Job:
        """What the worker is to do; `check` may refuse it. RequestError: in the words of the request."""
        with self.named():
            job = parse_request("chat", self.body, defaults)
            check(job)
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

    def _messages(self, given: Mapping[str, Any]) -> None:
        """Items become turns: of an assistant's reasoning, text and calls one turn, its results directly behind it."""
        items, whole = given.get("input"), isinstance(given.get("input"), str)
        if whole:
            items = [{"role": "user", "content": items}]
        if not isinstance(items, list) or not 1 <= len(items) <= MOST_ITEMS:
            raise RequestError(f"input must be a text, or a list of 1 to {MOST_ITEMS} items", "input")
        turns = Turns(self.places, _results(items))
        if "instructions" in given:
            turns.system(_part(text_of(given["instructions"], "instructions")), "instructions")
        for index, item in enumerate(items):
            where = "input" if whole else f"input[{index}]"
            if note := turns.take(item, where):
                self.ignored.append(note)
        turns.end()
        if not turns.messages:
            raise RequestError("input has no message; send one", "input")
        self.body["messages"] = turns.messages

    def _tools(self, given: Mapping[str, Any]) -> None:
        """Functions; tools of other types, which OpenAI's own servers have, the model is not shown."""
        tools, choice = typed(given, "tools", (list, type(None)), "a list of tools") or [], given.get("tool_choice")
        names = None
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            allowed = choice.get("tools") if isinstance(choice.get("tools"), list) else []
            names = [each.get("name") for each in allowed or [] if isinstance(each, dict)]
            choice = choice.get("mode", "auto")
        found: list[dict[str, Any]] = []
        for index, tool in enumerate(tools):
            where, kind = f"tools[{index}]", tool.get("type") if isinstance(tool, dict) else None
            if not isinstance(tool, dict) or not isinstance(kind, str):
                raise RequestError(f"{where} has no type; send {{'type': 'function', 'name': 'look', ...}}", where)
            if kind != "function":
                self.ignored.append(f"{where}: tools of type {kind[:MAX_NAME]} are not shown to the model")
                continue
            function = tool.get("function", {name: value for name, value in tool.items() if name in FUNCTION})
            if names is None or not isinstance(function, dict) or function.get("name") in names:
                self.places[f"tools[{len(found)}]"] = where
                found.append({"type": "function", "function": function})
        if isinstance(choice, dict) and choice.get("type") == "function":
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        elif isinstance(choice, dict):
            self.ignored.append(f"tool_choice: of type {shown(choice.get('type'))}")
            choice, self.echo["tool_choice"] = None, "auto"
        if choice == "auto" or (choice == "none" and not found):
            choice = None
        self.body |= {name: value for name, value in (("tools", found), ("tool_choice", choice)) if value}

    def _rest(self, given: Mapping[str, Any], thinking: Thinking, template: ChatTemplate | None) -> None:
        """Length, format, thinking, log probabilities."""
        self.body["max_tokens"] = given.get("max_output_tokens", -1)  # agents send none, and mean no limit
        text = typed(given, "text", (dict, type(None)), "an object such as {'format': {'type': 'text'}}") or {}
        form = text.get("format")
        if isinstance(form, dict) and form.get("type") == "json_schema":
            inner = {name: value for name, value in form.items() if name != "type" and value is not None}
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
        tools = [each["function"] for each in self.body.get("tools", ()) if isinstance(each["function"], dict)]
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
            "tools": [{"type": "function", "parameters": None, "strict": None, **each} for each in tools],
            "top_logprobs": given.get("top_logprobs"),
            "top_p": given.get("top_p"),
            "truncation": "disabled",
            "user": given.get("user"),
        }


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


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _parts(given: Any, where: str) -> list[dict[str, str]]:
    """The text of an item, in parts; RequestError for what is none."""
    if not isinstance(given, list):
        return [_part(text_of(given, where))]
    found = []
    for index, part in enumerate(given):
        place, kind = f"{where}[{index}]", part.get("type") if isinstance(part, dict) else None
        if kind not in TEXTS and kind != "refusal":
            raise RequestError(f"{place} is no text; the models read text only", place)
        found.append(_part(text_of(part.get("refusal" if kind == "refusal" else "text"), place)))
    return found


def _joined(given: Any, where: str) -> str:
    return "\n\n".join(part["text"] for part in _parts(given, where))


def _results(items: list[Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Results of calls by the ids of these, each with its place; RequestError for two of one call."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "function_call_output":
            where, name = f"input[{index}]", text_of(item.get("call_id"), f"input[{index}].call_id")
            if name in found:
                raise RequestError(f"{where}.call_id {shown(name)} has a result already", f"{where}.call_id")
            found[name] = (where, item)
    return found


class Turns:
    """Items on their way to messages. `places`: is told where each message came from; `results`: of calls, by id.

    >>> turns = Turns({}, {"c": ("input[1]", {"output": "seen"})})
    >>> turns.take({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}, "input[0]")
    >>> turns.end()
    >>> [each["role"] for each in turns.messages]
    ['assistant', 'tool']
    """

    def __init__(self, places: dict[str, str], results: Mapping[str, tuple[str, dict[str, Any]]]) -> None:
        self.messages: list[dict[str, Any]] = []
        self._places, self._results = places, results
        self._open: dict[str, Any] | None = None  # the assistant's turn that may go on
        self._seen = set[str]()  # calls

    def take(self, item: Any, where: str) -> str | None:
        """One more item; a line if it is of no use. RequestError for what is no item, or has no meaning here."""
        kind = item.get("type", "message" if "role" in item else None) if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(kind, str):
            raise RequestError(f"{where} is a {shown(item)} without a type; send a message or another item", where)
        if kind == "item_reference":
            raise RequestError(f"{where} refers to an item, but the server keeps none; send the item itself", where)
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "function_call_output":
            if item["call_id"] not in self._seen:
                place = f"{where}.call_id"
                raise RequestError(f"{place} {shown(item['call_id'])} answers no function_call before it", place)
            self.end()
        else:
            return f"{where}: items of type {kind[:MAX_NAME]} are not shown to the model"
        return None

    def system(self, part: dict[str, str], where: str) -> None:
        """Text that stands above the conversation. What comes first is one message: most templates show no second."""
        if len(self.messages) == 1 and self.messages[0]["role"] == "system" and self._open is None:
            self.messages[0]["content"].append(part)
        else:
            self._add({"role": "system", "content": [part]}, where)

    def end(self) -> None:
        """The assistant's turn is over: it and the results of its calls are messages now."""
        turn, self._open = self._open, None
        if turn is None:
            return
        index, calls = len(self.messages), turn.pop("calls")
        places = [place for _, place in calls]
        if calls:
            turn["tool_calls"] = [call for call, _ in calls]
        self._add(turn, turn.pop("where"))
        for number, place in enumerate(places):
            self._places[f"messages[{index}].tool_calls[{number}]"] = place
        for (call, _), place in zip(calls, places, strict=True):
            name = call["id"]
            if name not in self._results:
                raise RequestError(f"{place}: no function_call_output answers {shown(name)}; send its result", place)
            there, item = self._results[name]
            text = _joined(item.get("output"), f"{there}.output")
            self._add({"role": "tool", "tool_call_id": name, "content": text}, there)

    def _add(self, message: dict[str, Any], where: str) -> None:
        self._places[f"messages[{len(self.messages)}]"] = where
        self.messages.append(message)

    def _message(self, item: dict[str, Any], where: str) -> None:
        role, content = item.get("role"), item.get("content")
        parts = _parts(content, f"{where}.content")
        if role == "assistant":
            turn = self._assistant(where, "content")
            turn["content"] = parts
            if not parts:  # said nothing, as before a call
                turn["content"] = None
                if turn["reasoning_content"] is None:
                    self._open = None
            return
        self.end()
        if role in ("system", "developer"):
            for part in parts:
                self.system(part, where)
        elif parts or role != "user":
            self._add({"role": role, "content": content if isinstance(content, str) else parts}, where)

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        thought = next((name for name in ("content", "summary") if item.get(name)), None)
        if thought is not None:
            turn, text = self._assistant(where, "reasoning_content"), _joined(item[thought], f"{where}.{thought}")
            turn["reasoning_content"] = text

    def _call(self, item: dict[str, Any], where: str) -> None:
        name = text_of(item.get("call_id"), f"{where}.call_id")
        if name in self._seen:
            raise RequestError(
                f"{where}.call_id {shown(name)} stands there twice; give each its own", f"{where}.call_id"
            )
        self._seen.add(name)
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        turn = self._open or self._assistant(where, "content")
        turn["calls"].append(({"id": name, "type": "function", "function": function}, where))

    def _assistant(self, where: str, name: str) -> dict[str, Any]:
        """The turn that a part of this name goes to: the open one if that part is still to come."""
        turn = self._open
        if turn is None or turn["calls"] or turn["content"] is not None or turn[name] is not None:
            self.end()
            turn = {"role": "assistant", "content": None, "reasoning_content": None, "calls": [], "where": where}
            self._open = turn
        return turn
