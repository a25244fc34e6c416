"""The text of an answer as its tokens come: whole characters, without thinking and calls of tools."""

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
    """Return how a model with this template calls tools; None without tools or for an unknown call format.

    PromptError names the first invalid tool.
    """
    for index, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise PromptError(f"tools[{index}] has no function with a name; describe it as in OpenAI's API")
    # Templates may have a variant for tools.
    style = None if template is None or not tools else call_style_of(template.for_tools)
    return None if style is None else Calling(style, tools or ())


def read_calls(text: str, calling: Calling | None) -> tuple[str, tuple[Call, ...]]:
    """Split a whole answer into its text and the calls in it."""
    splitter = CallSplitter(calling)
    part, rest = splitter.push(text), splitter.finish()
    return part.text + rest.text, part.calls + rest.calls


class AnswerText:
    """Takes tokens and returns text as soon as it is certain; the concatenation is `Answer.text`.

    Only the U+FFFD that stands there for an incomplete last character is missing.

    Parameters
    ----------
    tokenizer : Tokenizer
    thinks : Thinks, optional
        How the model marks its thinking.
    calling : Calling, optional
        How it calls tools.
    """

    def __init__(self, tokenizer: Tokenizer, thinks: Thinks | None = None, calling: Calling | None = None) -> None:
        self._bytes, self._splitter = tokenizer.decoder(), Splitter(thinks)
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._calls, self._started, self._space = CallSplitter(calling), False, ""

    def push(self, token: int) -> str:
        """Return the text that is certain after one more token."""
        content = self._splitter.push(self._characters.decode(self._bytes.push(token))).content
        return self._calls.push(self._strip(content)).text

    def finish(self) -> str:
        """Return the text that was held back, except for an incomplete last character."""
        part = self._calls.push(self._strip(self._splitter.finish().content))
        return part.text + self._calls.finish().text

    def _strip(self, content: str) -> str:
        """Strip white space at both ends of all pieces together."""
        text = self._space + content if self._started else content.lstrip()
        whole = text.rstrip()
        self._started |= bool(whole)
        self._space = text[len(whole) :]  # dropped if nothing follows
        return whole
