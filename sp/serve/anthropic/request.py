"""Requests of Anthropic's Messages API, as the chats that they come to; what cannot be done is told, or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sp.chat import Thinking
from sp.chat.calls import shallow
from sp.chat.reasoning import EFFORTS
from sp.errors import plain
from sp.gguf import ChatTemplate, Tokenizer
from sp.prompt import DOCUMENT_MARK
from sp.serve.fields import BIGGEST, MAX_NAME, PARAM, RequestError, number, shown, text_of
from sp.serve.grammars import can_hold
from sp.serve.messages import to_prompt
from sp.serve.options import Defaults
from sp.serve.protocol import MAX_STOPS, Job, Range, parse_request
from sp.serve.tools import MOST_CALLS, MOST_TOOLS, NAME, id_of

CHANGING = re.compile(r"^x-anthropic-billing-header:[^\n]*(?:\n|\Z)", re.MULTILINE)
"""Lines of system blocks that say nothing to a model and differ from request to request: no prefix would be found."""
SAME = ("model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "sp")  # fields that mean what ours do
READ = ("messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences", "thinking")
WITHOUT_EFFECT = ("metadata", "betas", "anthropic_beta", "anthropic_version")
KEPT = " kept"  # of a block: it stays, whether or not marks count; no name that a client would give
MOST_MARKS = 64  # `cache_control` in messages, and system messages among them; Anthropic takes 4
MOST_TOLD = 16
EFFORT_WORDS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
MODES: dict[str, Any] = {"enabled": "on", "disabled": "off", "adaptive": "auto"}
RENAMED = {
    ".function.parameters": ".input_schema",
    ".function.": ".",
    "parallel_tool_calls": "tool_choice",
    PARAM: "output_config.format",
    "stop must be": "stop_sequences must be",
}  # what errors call fields, and what they are called here


@dataclass(frozen=True)
class Asked:
    """What a request comes to. `body`: of a chat, as `parse_request` takes it; `kept`: see `Job`; `places`: of each of
    its messages, the one it came from; `ignored`: fields and blocks that change nothing; `lines`: how many were left
    out because they change with every request.
    """

    body: dict[str, Any]
    kept: tuple[Range, ...] = ()
    places: tuple[int, ...] = ()
    ignored: tuple[str, ...] = ()
    lines: int = 0

    def told(self, more: Sequence[str] = ()) -> dict[str, Any]:
        """What the usage block says of it, under `sp`. `more`: what else was ignored."""
        ignored = [plain(each, 2 * MAX_NAME) for each in (*self.ignored, *more)[:MOST_TOLD]]
        return {"kept_blocks": len(self.kept), "left_out_lines": self.lines, "ignored": ignored}

    def translated(self, error: RequestError) -> RequestError:
        """An error of the chat, by the names of the request's own fields.

        >>> asked = Asked({}, places=(-1, 0, 1))
        >>> str(asked.translated(RequestError("messages[2].content is empty")))
        'messages[1].content is empty'
        """

        def place(found: re.Match[str]) -> str:
            index = int(found[1])
            at = self.places[index] if index < len(self.places) else index
            return "system" if at < 0 else f"messages[{at}]"

        message = re.sub(r"\bmessages\[(\d{1,4})\]", place, str(error))
        for ours, theirs in RENAMED.items():
            message = message.replace(ours, theirs)
        return RequestError(message, error.param, status=error.status, code=error.code)


def asked_of(body: Mapping[str, Any]) -> Asked:
    """The chat of a body; RequestError names the first field at fault.

    >>> asked_of({"system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]}).body["messages"][0]
    {'role': 'system', 'content': [{'type': 'text', 'text': 'Be brief.'}]}
    """
    given = body.get("sp")
    turns = Turns(marked=not isinstance(given, dict) or given.get("marked") is not False)
    turns.system(body.get("system"))
    turns.all(body.get("messages"))
    chat: dict[str, Any] = {name: body[name] for name in SAME if name in body}
    chat |= {"messages": turns.messages, "stop": _stops(body.get("stop_sequences"))}
    tools, unknown = _tools(body.get("tools"))
    chat |= {"tools": tools, **_choice(body.get("tool_choice"), tools, unknown)}
    _format(body, chat)
    known = (*SAME, *READ, *WITHOUT_EFFECT, "output_config")
    ignored = (*turns.ignored, *unknown, *(name for name in body if name not in known))
    return Asked(chat, tuple(turns.kept), tuple(turns.places), tuple(dict.fromkeys(ignored)), turns.lines)


class Turns:
    """Messages of a chat, made of blocks: `messages`, the places they come from, what of them is `kept`, and which
    kinds of blocks were `ignored`.
    """

    def __init__(self, marked: bool = True) -> None:
        self._marked = marked
        self.messages, self.places, self.kept = list[dict[str, Any]](), list[int](), list[Range]()
        self.ignored, self.lines = list[str](), 0
        self._open: tuple[str, ...] = ()  # calls of the turn before that wait for a result

    def system(self, given: Any) -> None:
        """The field ``system``."""
        texts = []
        for block, where in [] if given in (None, "", []) else _blocks(given, "system"):
            if block.get("type") != "text":
                raise RequestError(f"{where}.type is {shown(block.get('type'))}; send text", where)
            text, lines = CHANGING.subn("", text_of(block.get("text"), f"{where}.text"))
            self.lines += lines
            texts += [text] if text or not lines else []
        if texts:
            self._add(-1, "system", _parts(texts))

    def all(self, given: Any) -> None:
        """The field ``messages``: turns that follow each other on one side are one."""
        if not isinstance(given, list) or not given:
            raise RequestError("messages must be a list of at least one message", "messages")
        at, side, blocks, first = 0, "", list[tuple[dict[str, Any], str]](), list[tuple[dict[str, Any], str]]()
        for index, message in enumerate(given):
            where = f"messages[{index}]"
            role = message.get("role") if isinstance(message, dict) else None
            if role not in ("user", "assistant", "system"):
                raise RequestError(f"{where}.role is {shown(role)}; use user or assistant", f"{where}.role")
            found = _blocks(message.get("content"), f"{where}.content")
            own = "user" if role == "system" else role
            if own != side and (first or blocks):
                self._turn(at, side, first + blocks)
                at, first, blocks = index, [], []
            if role == "system":  # few templates show one in the middle: the user says it, before the question
                first += [({**block, KEPT: True}, place) for block, place in found]
            else:
                blocks += found
            side = own
        if side == "assistant":
            raise RequestError(f"messages[{len(given) - 1}] is the assistant's; end with one of the user", "messages")
        self._turn(at, side, first + blocks)
        if len(self.kept) > MOST_MARKS:
            raise RequestError(f"messages have more than {MOST_MARKS} cache_control marks; send fewer", "messages")

    def _turn(self, at: int, role: str, blocks: Sequence[tuple[dict[str, Any], str]]) -> None:
        if role == "user":
            self._user(at, blocks)
        else:
            self._assistant(at, blocks)

    def _user(self, at: int, blocks: Sequence[tuple[dict[str, Any], str]]) -> None:
        """Results of tools come first, whatever stands before them: templates want them behind their calls."""
        waiting, texts, marks = list(self._open), list[str](), list[bool]()
        for block, where in blocks:
            marked = self._stays(block)
            if block.get("type") != "tool_result":
                texts += (said := _said(block, where))
                marks += [marked] * len(said)
                continue
            given = id_of(block.get("tool_use_id"), f"{where}.tool_use_id")
            if given not in waiting:
                raise RequestError(f"{where}.tool_use_id {shown(given)} answers no tool_use of the turn before", where)
            waiting.remove(given)
            result, inside = self._result(block, where)
            self._add(at, "tool", _parts(result), tool_call_id=given)
            if marked or inside:
                self.kept.append((len(self.messages) - 1, 0, len(DOCUMENT_MARK.join(result))))
        if waiting:
            raise RequestError(f"messages[{at}] has no tool_result for {shown(waiting[0])}; send one", "messages")
        self._open = ()
        if texts:
            self._add(at, "user", _parts(texts))
            self._keep(texts, marks)

    def _result(self, block: Mapping[str, Any], where: str) -> tuple[list[str], bool]:
        """What a tool answered, and whether a part of it is marked; a picture in it is named instead of shown, so that
        an agent that has looked at one can go on.
        """
        given, texts, marked = block.get("content"), list[str](), False
        for part, place in [] if given in (None, "", []) else _blocks(given, f"{where}.content"):
            marked |= self._stays(part)
            kind = part.get("type")
            if kind in ("text", "document", "search_result") and not _binary(part):
                texts += _said(part, place)
            else:
                name = text_of(kind, f"{place}.type")[:MAX_NAME]
                texts.append(f"[{name} left out: the model reads text only]")
                self.ignored.append(f"{name} in tool_result")
        failed = block.get("is_error")
        if not isinstance(failed, bool | None):
            raise RequestError(f"{where}.is_error is {shown(failed)}; send true or false", where)
        texts = texts or [""]
        return (["Error: " + texts[0], *texts[1:]] if failed else texts), marked

    def _assistant(self, at: int, blocks: Sequence[tuple[dict[str, Any], str]]) -> None:
        texts, marks, thoughts, calls = list[str](), list[bool](), list[str](), list[dict[str, Any]]()
        for block, where in blocks:
            kind = block.get("type")
            if kind == "text":
                texts.append(text_of(block.get("text"), f"{where}.text"))
                marks.append(self._stays(block))
            elif kind == "thinking":
                thoughts.append(text_of(block.get("thinking"), f"{where}.thinking"))
            elif kind == "tool_use":
                calls.append(_call(block, where))
            else:  # what a server of Anthropic's has done or hidden, which no other model can read
                self.ignored.append(text_of(kind, f"{where}.type")[:MAX_NAME])
        self._open = tuple(call["id"] for call in calls)
        if len(calls) > MOST_CALLS:
            raise RequestError(f"messages[{at}] has more than {MOST_CALLS} tool_use blocks; send fewer", "messages")
        if len(set(self._open)) < len(self._open):
            raise RequestError(f"messages[{at}] has two tool_use blocks of one id; give each its own", "messages")
        thought = {"reasoning_content": DOCUMENT_MARK.join(thoughts)} if any(thoughts) else {}
        called = {"tool_calls": calls} if calls else {}
        self._add(at, "assistant", _parts(texts or [""]), **thought, **called)
        self._keep(texts, marks)

    def _stays(self, block: Mapping[str, Any]) -> bool:
        """Whether compression leaves a block."""
        return KEPT in block or (self._marked and block.get("cache_control") is not None)

    def _add(self, at: int, role: str, content: Any, **more: Any) -> None:
        self.messages.append({"role": role, "content": content, **more})
        self.places.append(at)

    def _keep(self, texts: Sequence[str], marks: Sequence[bool]) -> None:
        """Keep the marked ones of the texts that the last message is made of."""
        at = 0
        for text, marked in zip(texts, marks, strict=True):
            if marked and text:
                self.kept.append((len(self.messages) - 1, at, at + len(text)))
            at += len(text) + len(DOCUMENT_MARK)


def _blocks(given: Any, where: str) -> list[tuple[dict[str, Any], str]]:
    """Blocks of a content, each with its name."""
    if isinstance(given, str):
        return [({"type": "text", "text": given}, where)]
    if not isinstance(given, list) or not given:
        seen = "empty" if isinstance(given, list) else shown(given)
        raise RequestError(f"{where} is {seen}; send a string or a list of blocks", where)
    for index, block in enumerate(given):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise RequestError(f"{where}[{index}] is no block with a type; send an object", where)
    return [(block, f"{where}[{index}]") for index, block in enumerate(given)]


def _said(block: Mapping[str, Any], where: str) -> list[str]:
    """The texts of a block: of a document or a search result with its title before them."""
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return [text_of(block.get("text"), f"{where}.text")]
    if kind not in ("document", "search_result") or _binary(block):
        raise RequestError(f"{where}.type is {shown(kind)}; the models read text only", f"{where}.type")
    named = [block.get("title"), block.get("context") if kind == "document" else source]
    texts = [text_of(each, where) for each in named if each is not None and each != ""]
    inner: Any = block.get("content")
    if kind == "document":
        assert isinstance(source, dict), "it is no binary"
        if source.get("type") == "text":
            return [*texts, text_of(source.get("data"), f"{where}.source.data")]
        inner = source.get("content")
    for part, place in _blocks(inner, f"{where}.content"):
        if part.get("type") != "text":
            raise RequestError(f"{place}.type is {shown(part.get('type'))}; the models read text only", place)
        texts.append(text_of(part.get("text"), f"{place}.text"))
    return texts


def _binary(block: Mapping[str, Any]) -> bool:
    """Whether a document is no text, or lies elsewhere."""
    source = block.get("source")
    return block.get("type") == "document" and not (
        isinstance(source, dict) and source.get("type") in ("text", "content")
    )


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A call as a chat has it."""
    name, given = text_of(block.get("name"), f"{where}.name"), block.get("input")
    if not NAME.fullmatch(name):
        raise RequestError(f"{where}.name is {shown(name)}; send up to 128 letters, digits, _ . : or -", where)
    if not isinstance(given, dict) or not shallow(given):
        raise RequestError(f"{where}.input is {shown(given)}; send the object that the answer had", where)
    function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
    return {"id": id_of(block.get("id"), f"{where}.id"), "type": "function", "function": function}


def _parts(texts: Sequence[str]) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _stops(given: Any) -> list[str]:
    stops = given or []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(one, str) and one for one in stops):
        said = f"a list of up to {MAX_STOPS} strings that are not empty"
        raise RequestError(f"stop_sequences is {shown(given)}; send {said}", "stop_sequences")
    return stops


def _tools(given: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Tools as a chat has them, and what of them is not known here: those that Anthropic's servers run."""
    if not isinstance(given, list | None) or len(given or ()) > MOST_TOOLS:
        raise RequestError(f"tools must be a list of up to {MOST_TOOLS} objects", "tools")
    tools, unknown = list[dict[str, Any]](), list[str]()
    for index, tool in enumerate(given or ()):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise RequestError(f"{where} is {shown(tool)}; send an object with name and input_schema", where)
        kind = tool.get("type")
        if kind not in (None, "custom"):
            unknown.append(f"{where} of type {text_of(kind, f'{where}.type')[:MAX_NAME]}")
            continue
        name, schema = text_of(tool.get("name"), f"{where}.name"), tool.get("input_schema")
        if not isinstance(schema, dict):
            raise RequestError(f"{where}.input_schema is {shown(schema)}; send a JSON schema", f"{where}.input_schema")
        said = {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
        tools.append({"type": "function", "function": {"name": name, **said, "parameters": schema}})
    return tools, unknown


def _choice(given: Any, tools: Sequence[Any], unknown: list[str]) -> dict[str, Any]:
    """The fields of a chat for ``tool_choice``; what has no effect goes to `unknown`."""
    if given is None:
        return {}
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or kind not in ("auto", "any", "tool", "none"):
        seen = shown(kind if isinstance(given, dict) else given)
        raise RequestError(f"tool_choice.type is {seen}; send one of auto, any, tool, none", "tool_choice")
    single = given.get("disable_parallel_tool_use")
    if not isinstance(single, bool | None):
        raise RequestError(f"tool_choice.disable_parallel_tool_use is {shown(single)}; send true or false")
    chosen: Any = {"auto": "auto", "none": "none", "any": "required"}.get(kind)
    if kind == "tool":
        name = text_of(given.get("name"), "tool_choice.name")
        chosen = {"type": "function", "function": {"name": name}}
    if kind == "any" and not tools:
        if not unknown:
            raise RequestError("tool_choice is any, but there are no tools; send some", "tool_choice")
        chosen = "auto"
    return {"tool_choice": chosen, **({"parallel_tool_calls": False} if single else {})}


def _format(body: Mapping[str, Any], chat: dict[str, Any]) -> None:
    """Put the format of ``output_config`` into a chat."""
    given = body.get("output_config")
    if not isinstance(given, dict | None):
        raise RequestError(f"output_config is {shown(given)}; send an object", "output_config")
    wanted = (given or {}).get("format")
    if wanted is None:
        return
    schema = wanted.get("schema") if isinstance(wanted, dict) else None
    if not isinstance(schema, dict) or wanted.get("type") != "json_schema":
        raise RequestError("output_config.format is none; send {'type': 'json_schema', 'schema': {...}}", PARAM)
    chat[PARAM] = {"type": "json_schema", "json_schema": {"schema": schema}}


def job_of(
    body: Mapping[str, Any], defaults: Defaults, template: ChatTemplate | None, tokenizer: Tokenizer
) -> tuple[Job, Asked]:
    """The job of a body, and what it comes to; RequestError names the first field at fault."""
    asked = asked_of(body)
    most = number(body, "max_tokens", 1, BIGGEST, whole=True)
    if most is not None:  # clients ask for what their own models can
        asked.body["max_tokens"] = min(most, defaults.max_new_tokens)
    try:
        job = parse_request("chat", asked.body, defaults)
    except RequestError as error:
        raise asked.translated(error) from None
    thinking, ignored = _thinking(body, job.template.thinking, template)
    job = replace(job, kept=asked.kept, template=replace(job.template, thinking=thinking, param=None))
    if job.tools.forced:
        job, note = near(job, template, tokenizer)
        ignored += note
    if job.format and job.tools.tools and template is not None and not can_hold(job.tools, template, beside=True):
        job = replace(job, format=None)
        ignored.append("output_config.format beside tools")
    return job, replace(asked, ignored=(*asked.ignored, *ignored))


def _thinking(body: Mapping[str, Any], given: Thinking, template: ChatTemplate | None) -> tuple[Thinking, list[str]]:
    """What is asked of thinking by ``thinking`` and ``output_config.effort``, and what of it changes nothing."""
    wanted, effort = body.get("thinking"), (body.get("output_config") or {}).get("effort")
    ignored = list[str]()
    if wanted is not None:
        kind = wanted.get("type") if isinstance(wanted, dict) else wanted
        if not isinstance(wanted, dict) or not isinstance(kind, str) or kind not in MODES:
            raise RequestError(f"thinking.type is {shown(kind)}; send one of {', '.join(MODES)}", "thinking")
        number(wanted, "budget_tokens", 0, BIGGEST, whole=True)
        given = replace(given, mode=MODES[kind])
        ignored += ["thinking.budget_tokens"] if wanted.get("budget_tokens") is not None else []
        if replace(given, effort=None).note(template) is not None:
            ignored.append(f"thinking.type {kind}")
    if effort is not None:
        word = EFFORT_WORDS.get(text_of(effort, "output_config.effort"))
        if word is None:
            raise RequestError(f"output_config.effort is {shown(effort)}; send one of {', '.join(EFFORT_WORDS)}")
        if template is not None and any(name in template.names for name in EFFORTS):
            given = replace(given, effort=word)
        else:
            ignored.append("output_config.effort")
    return given, ignored


def near(job: Job, template: ChatTemplate | None, tokenizer: Tokenizer) -> tuple[Job, list[str]]:
    """A job whose answer must begin with a call, as near to that as the model can: without thinking, or else free to
    call or not. Whether it can is tried with a chat of a word. Returns the job and what changes nothing.
    """
    trial = replace(job, messages=({"role": "user", "parts": ["x"]},), kept=())
    quiet = replace(job.template, thinking=replace(job.template.thinking, mode="off"))
    for way, note in ((job.template, []), (quiet, ["thinking beside a tool_choice that forces a call"])):
        try:
            to_prompt(replace(trial, template=way), template, tokenizer)
            return replace(job, template=way), note
        except RequestError as error:
            if error.param != "tool_choice":
                return job, []  # which the job itself will say
    free = replace(job.tools, forced=False, name=None)
    return replace(job, tools=free), ["tool_choice, as this model thinks first"]
