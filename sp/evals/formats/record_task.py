"""A task of a file whose every record is an example."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from sp.errors import PromptError
from sp.evals.base import MARKUP, Count, Example, answer_room
from sp.evals.formats.file_task import FileTask
from sp.evals.formats.records import Record, check_each


class LongPromptError(PromptError):
    """A prompt of a file has more tokens than were asked for."""


@dataclass(frozen=True)
class RecordTask(FileTask):
    """Base of formats in which example i is record i: a format says how a record is read."""

    def known(self, most: int) -> int:
        """See `FileTask.known`."""
        return self.records.known(most)

    def check(self, most: int) -> None:
        """See `FileTask.check`."""
        check_each(self.path, self.known(most), lambda index: self.read(self.records[index], index))

    @abstractmethod
    def read(self, record: Record, index: int) -> Example:
        """The example of a record, whatever its length; its `max_new_tokens` are the fewest that an answer may have.

        Raises
        ------
        ConfigError, PromptError
            What is wrong with the record, and where it stands.
        """

    def replies(self, made: Example) -> tuple[str, ...]:
        """What right answers to an example look like."""
        return made.answers

    def example(self, index: int, tokens: int, count: Count) -> Example:
        """See `Task.example`; `tokens` 0 takes any length, otherwise longer prompts are refused."""
        record = self.records[index]
        made = self.read(record, index)
        parts = (made.document, made.question, made.answer_prefix, *(turn.content for turn in made.turns))
        used = sum(map(count, parts)) + MARKUP if tokens else 0
        if used > tokens:
            raise LongPromptError(
                f"{record.where}: the prompt has about {used} tokens, more than the {tokens} asked for"
            )
        room = self.max_new_tokens or max(answer_room(made.max_new_tokens, [one], count) for one in self.replies(made))
        return replace(made, tokens=tokens, max_new_tokens=room)
