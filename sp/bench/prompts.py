"""Text prompts and chats of an exact number of tokens, different for every repetition."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np

from sp.errors import ConfigError
from sp.gguf import ChatTemplate, Tokenizer
from sp.prompt import Prompt
from sp.prompt.prompt import prompt_of
from sp.session import Loaded
from sp.session.tokenise import CachingTokeniser

ROUNDS = 6  # attempts at an exact length, each corrected by the count of the last
READ = "Read."
Message = dict[str, str]


class Lines:
    """Sentences of a document, one per line, whose tokens do not depend on their neighbours. So all orders of the same
    lines are equally long, and the length of a long text is a sum, without tokenising it again."""

    def __init__(self, document: str, tokenizer: Tokenizer, needle: str | None = None) -> None:
        sentences = dict.fromkeys(re.split(r"(?<=[.!?])\s+", " ".join(document.split())))
        self._lines = [line for line in sentences if line and (needle is None or needle not in line)]
        self._costs = np.array([len(tokenizer.encode(line + "\n", begins=False)) for line in self._lines])

    def draw(self, room: int, seed: int) -> tuple[list[str], int]:
        """Draw lines of at most `room` tokens in total, in an order that depends on `seed`, and the remaining room."""
        lines, rng = list[str](), np.random.default_rng(seed)
        while room >= self._costs.max():
            for index in rng.permutation(len(self._lines)):
                if self._costs[index] > room:
                    break
                lines.append(self._lines[index])
                room -= int(self._costs[index])
        return lines, room


class PromptMaker:
    """Makes prompts out of the sentences of one document; each has `needle`, one of them, once in its middle."""

    def __init__(
        self, document: str, question: str, needle: str, tokenizer: Tokenizer, template: str | ChatTemplate | None
    ) -> None:
        self._question, self._needle = question, needle
        self._tokenizer, self._template = tokenizer, template
        self._lines = Lines(document, tokenizer, needle)
        self._drawn: dict[int, tuple[list[str], int]] = {}

    def make(self, tokens: int, seed: int = 0) -> Prompt:
        """Make a prompt of `tokens` tokens, or as close to it as words allow. `seed` decides the order of its
        sentences. ConfigError if markup, question and needle alone have more tokens."""
        if tokens not in self._drawn:
            self._drawn[tokens] = self._draw(tokens)
        lines, words = self._drawn[tokens]
        order = np.random.default_rng(seed).permutation(len(lines))
        return self._prompt([lines[i] for i in order], words)

    def _draw(self, tokens: int) -> tuple[list[str], int]:
        """Draw lines, and the number of filler words after them that makes the length exact."""
        room = tokens - len(self._prompt([], 1).tokenise(self._tokenizer))
        if room < 0:
            raise ConfigError(
                f"a prompt of {tokens} tokens is too short: markup and question take {tokens - room}; choose more"
            )
        lines, room = self._lines.draw(room, tokens)
        words = 1 + room
        for _ in range(ROUNDS):
            short = tokens - len(self._prompt(lines, words).tokenise(self._tokenizer))
            if short == 0 or words + short < 1:
                break
            words += short
        return lines, words

    def _prompt(self, lines: list[str], words: int) -> Prompt:
        half = len(lines) // 2
        document = "\n".join([*lines[:half], self._needle, *lines[half:], " ".join(["a"] * words)])
        return Prompt.from_document(document, self._question, self._template, needle=self._needle)


class TranscriptMaker:
    """Makes chats out of the sentences of one document: texts to read, each acknowledged, and a question at the end.
    PromptError if the target has no chat template to render them."""

    def __init__(self, document: str, question: str, target: Loaded) -> None:
        self._question, self._target, self._tokens = question, target, CachingTokeniser(target.tokenizer)
        self._lines = Lines(document, target.tokenizer)
        self.start = cache(self._start)

    def _start(self, tokens: int, new: int) -> tuple[Message, ...]:
        """Make the transcript that all turns share: `tokens` tokens before what a turn adds, in messages of about `new`
        tokens. ConfigError if markup alone has more."""
        count = max(1, tokens // new)
        room = (tokens - self._length(_acknowledged([["a"]] * count))) // count
        if room < 0:
            raise ConfigError(
                f"a transcript of {tokens} tokens is too short: markup takes {tokens - room * count}; choose more"
            )
        texts = [self._lines.draw(room, seed)[0] for seed in range(count)]
        return self._exact(lambda words: _acknowledged([*texts[:-1], [*texts[-1], words]]), tokens, "transcript")

    def turn(self, tokens: int, new: int, seed: int) -> tuple[Message, ...]:
        """Make the chat of a turn: the transcript, then a text and a question about it of `new` tokens together, which
        differ by `seed`. ConfigError if markup and question alone have more tokens."""
        start, whole = self.start(tokens, new), tokens + new
        question = _message("user", f"{self._question} ({seed})")
        bare = (*start, *_acknowledged([[f"Text {seed}.", "a"]]), question)
        room = whole - self._count(bare)
        if room < 0:
            raise ConfigError(
                f"a turn of {new} tokens is too short: markup and question take {new - room}; choose more"
            )
        lines, _ = self._lines.draw(room, seed + 1_000_000)

        def make(words: str) -> tuple[Message, ...]:
            return (*start, *_acknowledged([[f"Text {seed}.", *lines, words]]), question)

        return self._exact(make, whole, "turn", whole=True)

    def first(self, tokens: int, new: int) -> tuple[Message, ...]:
        """Make a chat of the transcript and a question, after which a session cache has a snapshot at the transcript's
        end."""
        return (*self.start(tokens, new), _message("user", self._question))

    def prompt(self, messages: tuple[Message, ...]) -> Prompt:
        """Render a chat by the target's template."""
        return prompt_of(messages, self._target)

    def _exact(
        self, make: Callable[[str], tuple[Message, ...]], tokens: int, kind: str, whole: bool = False
    ) -> tuple[Message, ...]:
        """Call `make` with as many filler words as give its messages `tokens` tokens. `whole`: count the markup after
        the last message, too."""
        words = 1
        for _ in range(ROUNDS):
            messages = make(" ".join(["a"] * words))
            short = tokens - (self._count(messages) if whole else self._length(messages))
            if short == 0:
                return messages
            words = max(1, words + short)
        raise ConfigError(f"no {kind} has exactly {tokens} tokens in this vocabulary; choose another number")

    def _count(self, messages: tuple[Message, ...]) -> int:
        return len(self._tokens(self.prompt(messages)))

    def _length(self, messages: tuple[Message, ...]) -> int:
        """Count the tokens before those that another user message would add."""
        rendered = self._tokens(self.prompt((*messages, _message("user", "x"))))
        begins = max(span.start for span in rendered.prompt.spans if span.kind == "plain")
        return int(np.searchsorted(np.ascontiguousarray(rendered.bytes[:, 1]), begins, side="right"))


def _acknowledged(texts: list[list[str]]) -> tuple[Message, ...]:
    pairs = ((_message("user", "\n".join(text)), _message("assistant", READ)) for text in texts)
    return tuple(message for pair in pairs for message in pair)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
