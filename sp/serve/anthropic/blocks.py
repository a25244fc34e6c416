"""Content blocks of Anthropic's messages, translated to the messages of a chat."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sp.chat.calls import shallow
from sp.chat.messages import describe_value
from sp.prompt import DOCUMENT_MARK
from sp.serve.fields import MAX_NAME, RequestError, text_of
from sp.serve.protocol import Range
from sp.serve.tools import MOST_CALLS, NAME, id_of

CHANGING = re.compile(r"^x-anthropic-billing-header:[^\n]*(?:\n|\Z)", re.MULTILINE)
"""Lines of system blocks that mean nothing to a model but differ between requests, so that no prefix would match."""
PROTECTED = " protected"  # key of a block that stays whatever `marked` is; no client sends a name with a space
MOST_MARKS = 64  # `cache_control` in messages, and system messages among them; Anthropic takes 4


class BlockChatBuilder:
    """Builds the messages of a chat from turns that consist of content blocks.

    `messages`: the chat; `places`: for each of its messages the index of the one it came from; `protected_ranges`: text
    that compression leaves; `ignored`: kinds of blocks that were omitted; `lines`: lines of system blocks that were
    dropped.
    """

    def __init__(self, marked: bool = True) -> None:
        self._marked = marked
        self.messages, self.places, self.protected_ranges = list[dict[str, Any]](), list[int](), list[Range]()
        self.ignored, self.lines = list[str](), 0
        self._open: tuple[str, ...] = ()  # ids of the last turn's calls, which need results

    def add_system(self, system: Any) -> None:
        """Add the field ``system``."""
        texts = []
        for block, where in [] if system in (None, "", []) else _blocks(system, "system"):
            if block.get("type") != "text":
                raise RequestError(f"{where}.type is {describe_value(block.get('type'))}; send text", where)
            text, lines = CHANGING.subn("", text_of(block.get("text"), f"{where}.text"))
            self.lines += lines
            texts += [text] if text or not lines else []
        if texts:
            self._add(-1, "system", _parts(texts))

    def add_messages(self, messages: Any) -> None:
        """Add the field ``messages``; successive turns of one side are merged."""
        if not isinstance(messages, list) or not messages:
            raise RequestError("messages must be a list of at least one message", "messages")
        start, side, blocks, first = 0, "", list[tuple[dict[str, Any], str]](), list[tuple[dict[str, Any], str]]()
        for index, message in enumerate(messages):
            where = f"messages[{index}]"
            role = message.get("role") if isinstance(message, dict) else None
            if role not in ("user", "assistant", "system"):
                raise RequestError(f"{where}.role is {describe_value(role)}; use user or assistant", f"{where}.role")
            content = _blocks(message.get("content"), f"{where}.content")
            speaker = "user" if role == "system" else role
            if speaker != side and (first or blocks):
                self._turn(start, side, first + blocks)
                start, first, blocks = index, [], []
            if role == "system":  # few templates allow one here: it becomes the user's text, before the question
                first += [({**block, PROTECTED: True}, place) for block, place in content]
            else:
                blocks += content
            side = speaker
        if side == "assistant":
            raise RequestError(
                f"messages[{len(messages) - 1}] is the assistant's; end with one of the user", "messages"
            )
        self._turn(start, side, first + blocks)
        if len(self.protected_ranges) > MOST_MARKS:
            raise RequestError(f"messages have more than {MOST_MARKS} cache_control marks; send fewer", "messages")

    def _turn(self, index: int, role: str, blocks: Sequence[tuple[dict[str, Any], str]]) -> None:
        if role == "user":
            self._user(index, blocks)
        else:
            self._assistant(index, blocks)

    def _user(self, index: int, blocks: Sequence[tuple[dict[str, Any], str]]) -> None:
        """Add a user's turn. Tool results come first, wherever they are in the turn: templates expect them directly
        after their calls.
        """
        waiting, texts, marks = list(self._open), list[str](), list[bool]()
        for block, where in blocks:
            marked = self._is_protected(block)
            if block.get("type") != "tool_result":
                texts += (block_texts := _texts_of(block, where))
                marks += [marked] * len(block_texts)
                continue
            call_id = id_of(block.get("tool_use_id"), f"{where}.tool_use_id")
            if call_id not in waiting:
                raise RequestError(
                    f"{where}.tool_use_id {describe_value(call_id)} matches no tool_use of the turn before", where
                )
            waiting.remove(call_id)
            result, inside = self._result(block, where)
            self._add(index, "tool", _parts(result), tool_call_id=call_id)
            if marked or inside:
                self.protected_ranges.append((len(self.messages) - 1, 0, len(DOCUMENT_MARK.join(result))))
        if waiting:
            raise RequestError(
                f"messages[{index}] has no tool_result for {describe_value(waiting[0])}; send one", "messages"
            )
        self._open = ()
        if texts:
            self._add(index, "user", _parts(texts))
            self._protect(texts, marks)

    def _result(self, block: Mapping[str, Any], where: str) -> tuple[list[str], bool]:
        """Return the texts of a tool's result, and True if one of them is marked. An image is replaced by its name, so
        that an agent that has looked at one can continue.
        """
        content, texts, marked = block.get("content"), list[str](), False
        for part, place in [] if content in (None, "", []) else _blocks(content, f"{where}.content"):
            marked |= self._is_protected(part)
            kind = part.get("type")
            if kind in ("text", "document", "search_result") and not _binary(part):
                texts += _texts_of(part, place)
            else:
                name = text_of(kind, f"{place}.type")[:MAX_NAME]
                texts.append(f"[{name} left out: the model reads text only]")
                self.ignored.append(f"{name} in tool_result")
        failed = block.get("is_error")
        if not isinstance(failed, bool | None):
            raise RequestError(f"{where}.is_error is {describe_value(failed)}; send true or false", where)
        texts = texts or [""]
        return (["Error: " + texts[0], *texts[1:]] if failed else texts), marked

    def _assistant(self, index: int, blocks: Sequence[tuple[dict[str, Any], str]]) -> None:
        """Add an assistant's turn: its text, thinking and calls."""
        texts, marks, thoughts, calls = list[str](), list[bool](), list[str](), list[dict[str, Any]]()
        for block, where in blocks:
            kind = block.get("type")
            if kind == "text":
                texts.append(text_of(block.get("text"), f"{where}.text"))
                marks.append(self._is_protected(block))
            elif kind == "thinking":
                thoughts.append(text_of(block.get("thinking"), f"{where}.thinking"))
            elif kind == "tool_use":
                calls.append(_call(block, where))
            else:  # the work of Anthropic's own servers, or redacted thinking
                self.ignored.append(text_of(kind, f"{where}.type")[:MAX_NAME])
        self._open = tuple(call["id"] for call in calls)
        if len(calls) > MOST_CALLS:
            raise RequestError(f"messages[{index}] has more than {MOST_CALLS} tool_use blocks; send fewer", "messages")
        if len(set(self._open)) < len(self._open):
            raise RequestError(
                f"messages[{index}] has two tool_use blocks with the same id; give each its own", "messages"
            )
        thought = {"reasoning_content": DOCUMENT_MARK.join(thoughts)} if any(thoughts) else {}
        called = {"tool_calls": calls} if calls else {}
        self._add(index, "assistant", _parts(texts or [""]), **thought, **called)
        self._protect(texts, marks)

    def _is_protected(self, block: Mapping[str, Any]) -> bool:
        """Return True if compression leaves a block."""
        return PROTECTED in block or (self._marked and block.get("cache_control") is not None)

    def _add(self, index: int, role: str, content: Any, **more: Any) -> None:
        self.messages.append({"role": role, "content": content, **more})
        self.places.append(index)

    def _protect(self, texts: Sequence[str], marks: Sequence[bool]) -> None:
        """Protect the marked texts among those of the last message."""
        offset = 0
        for text, marked in zip(texts, marks, strict=True):
            if marked and text:
                self.protected_ranges.append((len(self.messages) - 1, offset, offset + len(text)))
            offset += len(text) + len(DOCUMENT_MARK)


def _blocks(content: Any, where: str) -> list[tuple[dict[str, Any], str]]:
    """Return the blocks of a content, each with its place in the request."""
    if isinstance(content, str):
        return [({"type": "text", "text": content}, where)]
    if not isinstance(content, list) or not content:
        problem = "empty" if isinstance(content, list) else describe_value(content)
        raise RequestError(f"{where} is {problem}; send a string or a list of blocks", where)
    for index, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise RequestError(f"{where}[{index}] is not a block; send an object with a type", where)
    return [(block, f"{where}[{index}]") for index, block in enumerate(content)]


def _texts_of(block: Mapping[str, Any], where: str) -> list[str]:
    """Return the texts of a block; those of a document or search result start with its title."""
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return [text_of(block.get("text"), f"{where}.text")]
    if kind not in ("document", "search_result") or _binary(block):
        raise RequestError(f"{where}.type is {describe_value(kind)}; the models read text only", f"{where}.type")
    titles = [block.get("title"), block.get("context") if kind == "document" else source]
    texts = [text_of(title, where) for title in titles if title is not None and title != ""]
    inner: Any = block.get("content")
    if kind == "document":
        assert isinstance(source, dict), "not a binary document"
        if source.get("type") == "text":
            return [*texts, text_of(source.get("data"), f"{where}.source.data")]
        inner = source.get("content")
    for part, place in _blocks(inner, f"{where}.content"):
        if part.get("type") != "text":
            raise RequestError(f"{place}.type is {describe_value(part.get('type'))}; the models read text only", place)
        texts.append(text_of(part.get("text"), f"{place}.text"))
    return texts


def _binary(block: Mapping[str, Any]) -> bool:
    """Return True if a document is not text, or is stored elsewhere."""
    source = block.get("source")
    return block.get("type") == "document" and not (
        isinstance(source, dict) and source.get("type") in ("text", "content")
    )


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Translate a call to one of a chat."""
    name, arguments = text_of(block.get("name"), f"{where}.name"), block.get("input")
    if not NAME.fullmatch(name):
        raise RequestError(f"{where}.name is {describe_value(name)}; send up to 128 letters, digits, _ . : or -", where)
    if not isinstance(arguments, dict) or not shallow(arguments):
        raise RequestError(f"{where}.input is {describe_value(arguments)}; send the object that the answer had", where)
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": id_of(block.get("id"), f"{where}.id"), "type": "function", "function": function}


def _parts(texts: Sequence[str]) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]
