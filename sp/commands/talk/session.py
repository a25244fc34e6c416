"""Session: what was said so far, the files that wait to be talked about, and turns as rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sp.chat import Thinking, Turn
from sp.prompt.messages import prompt_of
from sp.serve.text import ReplyText
from sp.session import Conversation, TurnResult, turn_row
from sp.session.options import Recall
from sp.session.result import Reporter, silent

OnPart = Callable[[str, str], bool | None]
"""Takes what more there is of thinking, and of the answer."""

GAP = "\n\n"
"""What stands between files and the question about them, as in the prompt of `sp run`."""


class Session:
    """Somebody's part in a conversation.

    Parameters
    ----------
    talk : Conversation
    system : str
        What the model is told first; nothing if empty.
    thinking : Thinking
    needles : tuple of str
        Pieces of the text to mark in rows.

    Attributes
    ----------
    turns : list of Turn
        All that was said.
    rows : list of dict
        As of `turn_row`, with the number of the `conversation` and the `question`.
    last : TurnResult or None
        The last turn's.
    """

    def __init__(
        self,
        talk: Conversation,
        system: str = "",
        thinking: Thinking = Thinking(),  # noqa: B008
        needles: tuple[str, ...] = (),
    ) -> None:
        self.talk, self.rows, self._number = talk, list[dict[str, Any]](), 0
        self.turns = list[Turn]()
        self._begin = (Turn("system", system),) if system else ()
        self._thinking, self._needles = thinking, needles
        self.clear()

    def clear(self) -> None:
        """Begin anew; rows stay."""
        self._number += 1
        self.turns, self._files = [*self._begin], list[str]()
        self.last: TurnResult | None = None
        self.talk.clear()

    def add(self, text: str) -> None:
        """Put a text before the next message."""
        self._files.append(text)

    def ask(self, message: str, on_part: OnPart | None = None, reporter: Reporter = silent) -> TurnResult:
        """Answer a message, of the files before which what does not matter may be left out.

        If that fails the message was never said, and files go on waiting.

        Parameters
        ----------
        message : str
        on_part : callable, optional
            Called with thinking and answer as soon as there is more of one; if it returns True, the answer ends there.
        reporter : Reporter
        """
        before = "".join(text.strip("\n") + GAP for text in self._files)
        said, target = Turn("user", before + message), self.talk.pipeline.target
        prompt = prompt_of([*self.turns, said], target, (), self._thinking, kept_from=len(before))
        text, tell = ReplyText(target.tokenizer, (), prompt.thinks), on_part or (lambda reasoning, answer: None)

        def on_token(token: int) -> bool | None:
            part = text.push(token)
            return tell(part.reasoning, part.content)

        result = self.talk.answer(prompt, on_token, reporter=reporter)
        rest, answer = text.finish(), result.answer
        tell(rest.reasoning, rest.content)
        self.turns += [said, Turn("assistant", answer.text, answer.reasoning)]
        self._files, self.last = [], result
        number = 1 + sum(row["conversation"] == self._number for row in self.rows)
        row = turn_row(result, number, self._needles)
        self.rows.append({"conversation": self._number, **row, "question": message})
        return result

    def recall(self, mode: Recall) -> None:
        """Bring back what was left out in another way from now on; ConfigError for one that there is not."""
        self.talk.memory = replace(self.talk.memory, recall=mode)
