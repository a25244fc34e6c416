"""The text of an answer as its tokens come: whole characters, without thinking before it and calls behind it."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from sp.chat.call_splitter import Calling, CallSplitter
from sp.chat.calls import call_style_of
from sp.chat.reasoning import Splitter, Thinks
from sp.chat.turn import Call
from sp.errors import PromptError
from sp.gguf import ChatTemplate, Tokenizer


def calling_of(template: ChatTemplate | None, tools: Sequence[Mapping[str, Any]] | None) -> Calling | None:
    """How a model with this template calls tools; None without tools, and where its way to call them is not known.

    PromptError names the first tool that is none.
    """
    for index, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise PromptError(f"tools[{index}] is no function with a name; describe it as OpenAI's clients do")
    style = None if template is None or not tools else call_style_of(template.for_tools)
    return None if style is None else Calling(style, tools or ())


def read_calls(text: str, calling: Calling | None) -> tuple[str, tuple[Call, ...]]:
    """A whole answer without the calls in it, and these."""
    splitter = CallSplitter(calling)
    said, rest = splitter.push(text), splitter.finish()
    return said.text + rest.text, said.calls + rest.calls


class AnswerText:
    """Feeds on tokens and hands out text as soon as it is certain; all of it is what `Answer.text` says, but for the
    mark there of a character that was cut. `thinks`: how the model marks its thinking; `calling`: how it calls tools.
    """

    def __init__(self, tokenizer: Tokenizer, thinks: Thinks | None = None, calling: Calling | None = None) -> None:
        self._bytes, self._splitter = tokenizer.decoder(), Splitter(thinks)
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._calls, self._begun, self._space = CallSplitter(calling), False, ""

    def push(self, token: int) -> str:
        """What is certain after one more token."""
        content = self._splitter.push(self._characters.decode(self._bytes.push(token))).content
        return self._calls.push(self._within(content)).text

    def finish(self) -> str:
        """What was held back, but for a character of which an answer that was cut has only a part."""
        said = self._calls.push(self._within(self._splitter.finish().content))
        return said.text + self._calls.finish().text

    def _within(self, content: str) -> str:
        """Without white space at both ends of all that comes."""
        text = self._space + content if self._begun else content.lstrip()
        whole = text.rstrip()
        self._begun |= bool(whole)
        self._space = text[len(whole) :]
        return whole
