"""Text prompts and chats of an exact number of tokens, a different one for every repetition."""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from sp.errors import ConfigError
from sp.gguf import ChatTemplate, Tokenizer
from sp.prompt import Prompt
from sp.prompt.prompt import prompt_of
from sp.session import Loaded
from sp.session.tokenise import CachingTokeniser

ROUNDS = 6  # of counting and mending, until the length is exact
READ = "Read."
Message = dict[str, str]


class Lines:
    """Sentences of a document, a line each, whose tokens do not depend on their neighbours: all orders of the same
    lines are equally long, and a long text is counted without being tokenised over and over."""

    def __init__(self, document: str, tokenizer: Tokenizer, but: str | None = None) -> None:
        sentences = dict.fromkeys(re.split(r"(?<=[.!?])\s+", " ".join(document.split())))
        self._lines = [line for line in sentences if line and (but is None or but not in line)]
        self._costs = np.array([len(tokenizer.encode(line + "\n", begins=False)) for line in self._lines])

    def draw(self, room: int, seed: int) -> tuple[list[str], int]:
        """Lines of at most `room` tokens in all, in an order of their own, and the room that is left."""
        lines, rng = list[str](), np.random.default_rng(seed)
        while room >= self._costs.max():
            for at in rng.permutation(len(self._lines)):
                if self._costs[at] > room:
                    break
                lines.append(self._lines[at])
                room -= int(self._costs[at])
        return lines, room


class PromptMaker:
    """Makes prompts out of the sentences of one document; `needle`, one of them, stands once in the middle of each."""

    def __init__(
        self, document: str, question: str, needle: str, tokenizer: Tokenizer, template: str | ChatTemplate | None
    ) -> None:
        self._question, self._needle = question, needle
        self._tokenizer, self._template = tokenizer, template
        self._lines = Lines(document, tokenizer, needle)
        self._drawn: dict[int, tuple[list[str], int]] = {}

    def make(self, tokens: int, seed: int = 0) -> Prompt:
        """A prompt of `tokens` tokens, or of as near to it as words allow; other seeds order it otherwise. ConfigError
        when markup, question and needle alone take more."""
        if tokens not in self._drawn:
            self._drawn[tokens] = self._draw(tokens)
        lines, words = self._drawn[tokens]
        order = np.random.default_rng(seed).permutation(len(lines))
        return self._prompt([lines[i] for i in order], words)

    def _draw(self, tokens: int) -> tuple[list[str], int]:
        """Lines, and how many words the last one has, that make up the length."""
        room = tokens - len(self._prompt([], 1).tokenise(self._tokenizer))
        if room < 0:
            raise ConfigError(f"no prompt of {tokens} tokens: markup and question take {tokens - room}; ask for more")
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
    """Makes chats out of the sentences of one document: texts to read, each acknowledged, and at last a question.
    PromptError if the target, whose chat template shows them, has none."""

    def __init__(self, document: str, question: str, target: Loaded) -> None:
        self._question, self._target, self._tokens = question, target, CachingTokeniser(target.tokenizer)
        self._lines = Lines(document, target.tokenizer)
        self.start = cache(self._start)

    def _start(self, tokens: int, new: int) -> tuple[Message, ...]:
        """What all turns begin with: `tokens` tokens up to what a turn adds, in messages of about `new`. ConfigError
        when markup alone takes more."""
        count = max(1, tokens // new)
        room = (tokens - self._length(_read([["a"]] * count))) // count
        if room < 0:
            raise ConfigError(f"no transcript of {tokens} tokens: markup takes {tokens - room * count}; ask for more")
        texts = [self._lines.draw(room, seed)[0] for seed in range(count)]
        return self._exact(lambda words: _read([*texts[:-1], [*texts[-1], words]]), tokens, "transcript")

    def turn(self, tokens: int, new: int, seed: int) -> tuple[Message, ...]:
        """The chat of a turn: the start, a text, and a question about it, together `new` tokens more; other seeds give
        others. ConfigError when markup and question alone take more."""
        start, whole = self.start(tokens, new), tokens + new
        question = _said("user", f"{self._question} ({seed})")
        bare = (*start, *_read([[f"Text {seed}.", "a"]]), question)
        room = whole - self._count(bare)
        if room < 0:
            raise ConfigError(f"no turn of {new} tokens: markup and question take {new - room}; ask for more")
        lines, _ = self._lines.draw(room, seed + 1_000_000)
        return self._exact(
            lambda words: (*start, *_read([[f"Text {seed}.", *lines, words]]), question), whole, "turn", whole=True
        )

    def first(self, tokens: int, new: int) -> tuple[Message, ...]:
        """The start and a question, so that what is remembered of it has a place to go back to at its end."""
        return (*self.start(tokens, new), _said("user", self._question))

    def prompt(self, messages: tuple[Message, ...]) -> Prompt:
        """As the target's template shows it."""
        return prompt_of(messages, self._target)

    def _exact(self, make, tokens: int, what: str, whole: bool = False) -> tuple[Message, ...]:  # type: ignore[no-untyped-def]
        """What `make` makes of so many words that it has `tokens` tokens."""
        words = 1
        for _ in range(ROUNDS):
            made: tuple[Message, ...] = make(" ".join(["a"] * words))
            short = tokens - (self._count(made) if whole else self._length(made))
            if short == 0:
                return made
            words = max(1, words + short)
        raise ConfigError(f"no {what} of exactly {tokens} tokens in this vocabulary; ask for another number")

    def _count(self, messages: tuple[Message, ...]) -> int:
        return len(self._tokens(self.prompt(messages)))

    def _length(self, messages: tuple[Message, ...]) -> int:
        """Tokens before what another message of the user adds."""
        shown = self._tokens(self.prompt((*messages, _said("user", "x"))))
        begins = max(span.start for span in shown.prompt.spans if span.kind == "plain")
        return int(np.searchsorted(np.ascontiguousarray(shown.bytes[:, 1]), begins, side="right"))


def _read(texts: list[list[str]]) -> tuple[Message, ...]:
    return tuple(each for text in texts for each in (_said("user", "\n".join(text)), _said("assistant", READ)))


def _said(role: str, content: str) -> Message:
    return {"role": role, "content": content}
