"""PromptMaker: text prompts of an exact number of tokens, a different one for every repetition."""

from __future__ import annotations

import re

import numpy as np

from sp.errors import ConfigError
from sp.gguf import ChatTemplate, Tokenizer
from sp.prompt import Prompt

ROUNDS = 4  # of counting and mending, until the length is exact


class PromptMaker:
    """Makes prompts out of the sentences of one document, a line each.

    A line's tokens do not depend on its neighbours, so all orders of the same lines are equally long, and a long
    prompt is counted without being tokenised over and over.

    Parameters
    ----------
    document, question, needle : str
        The needle is a sentence of the document and stands once in the middle of every prompt.
    tokenizer : Tokenizer
        Whose tokens are counted.
    template : str, ChatTemplate or None
        See `Prompt.from_document`.
    """

    def __init__(
        self, document: str, question: str, needle: str, tokenizer: Tokenizer, template: str | ChatTemplate | None
    ) -> None:
        self._question, self._needle = question, needle
        self._tokenizer, self._template = tokenizer, template
        sentences = dict.fromkeys(re.split(r"(?<=[.!?])\s+", " ".join(document.split())))
        self._lines = [line for line in sentences if line and needle not in line]
        self._costs = np.array([len(tokenizer.encode(line + "\n", begins=False)) for line in self._lines])
        self._drawn: dict[int, tuple[list[str], int]] = {}

    def make(self, tokens: int, seed: int = 0) -> Prompt:
        """A prompt of `tokens` tokens, or of as near to it as words allow; other seeds order it otherwise.

        Raises
        ------
        ConfigError
            When markup, question and needle alone take more.
        """
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
        lines = []
        rng = np.random.default_rng(tokens)
        while room >= self._costs.max():
            for i in rng.permutation(len(self._lines)):
                if self._costs[i] > room:
                    break
                lines.append(self._lines[i])
                room -= int(self._costs[i])
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
