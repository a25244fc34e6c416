"""What of a request can be known before a model reads any of it: whether its prompt can be shown, and is too long."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from sp.errors import TooLongError
from sp.gguf import Tokenizer
from sp.prompt import Prompt
from sp.serve.messages import to_prompt
from sp.serve.protocol import Job
from sp.session import RunOptions
from sp.session.decision import FRAME, ModelPair, fit

PART = 1 << 16  # characters that are counted at once
SAMPLES, SAMPLE = 8, 1 << 12  # places of a text, and characters at each, by which its tokens are guessed
MANY = 4  # times the most tokens: so long a text is refused without all of its tokens, which the better message needs
SLACK = 1.1  # a text that is cut anywhere has a few more tokens than the whole


def most_tokens(pair: ModelPair, options: RunOptions) -> float:
    """Tokens of a prompt of which none more could be read, however it is compressed."""
    context = pair.target.model.config.context
    compressed = pair.drafter is not None and options.compress != "off" and not options.scorer.reads_target
    return context / options.keep_ratio if compressed else context


def check_length(pair: ModelPair, prompt: Prompt, options: RunOptions) -> None:
    """TooLongError for a prompt of more tokens than could be read, before all of them are made: a text of 14 MB takes a
    core for many seconds. They are counted up to there where a few samples say that there are more; what is only
    somewhat too long is left to `fit`, which needs them all.
    """
    most, text, tokenizer = most_tokens(pair, options), prompt.text, pair.target.tokenizer
    enough = MANY * SLACK * most
    if len(text) <= enough or guessed(tokenizer, text) <= enough:
        return
    if (count := counted(tokenizer, text, enough)) > enough:
        raise TooLongError(
            f"the prompt has over {int(count / SLACK)} tokens, but {pair.target.path.name} reads at most {int(most)} "
            "with these options; shorten it"
        )


def guessed(tokenizer: Tokenizer, text: str) -> float:
    """About how many tokens a text has, by samples of it."""
    step = max(len(text) // SAMPLES, SAMPLE)
    samples = [text[start : start + SAMPLE] for start in range(0, len(text), step)]
    return sum(len(tokenizer.encode(each)) for each in samples) * len(text) / sum(map(len, samples))


def counted(tokenizer: Tokenizer, text: str, enough: float) -> int:
    """About how many tokens a text has, or some number above `enough`."""
    count = 0
    for start in range(0, len(text), PART):
        count += len(tokenizer.encode(text[start : start + PART]))
        if count > enough:
            break
    return count


class Waiting(Protocol):
    """A request in the queue."""

    job: Job


@dataclass
class Ahead:
    """Looks at requests while they wait, one by one, in a thread of its own."""

    pair: ModelPair
    pool: Executor = field(default_factory=partial(ThreadPoolExecutor, 1, "sp-ahead"))

    def check(self, ticket: Waiting) -> None:
        """Raise what would refuse a request before a model reads any of it."""
        job, target, options = ticket.job, self.pair.target, ticket.job.options
        prompt, _ = to_prompt(job, target.template, target.tokenizer)
        if len(prompt.text.encode()) + FRAME + options.max_new_tokens <= target.model.config.context:
            return
        check_length(self.pair, prompt, options)
        tokens = prompt.tokenise(target.tokenizer)
        try:
            fit(target, len(tokens), options, self.pair.drafter is not None, int(tokens.mask("protected").sum()))
        except TooLongError as error:
            if error.room is None or error.room < 1:  # else the answer is shortened
                raise
