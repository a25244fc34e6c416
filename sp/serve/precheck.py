"""Checks of a request before a model reads any of it: its prompt can be rendered, and is not too long."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from sp.errors import TooLongError
from sp.gguf import Tokenizer
from sp.prompt import Prompt
from sp.serve.messages import to_prompt
from sp.serve.protocol import CompletionJob
from sp.session import RunOptions
from sp.session.decision import FRAME, ModelPair, fit

PART = 1 << 16  # characters that are tokenised at once
SAMPLES, SAMPLE = 8, 1 << 12  # number of samples, and characters of each, that estimate the tokens of a text
EXACT_FACTOR = 4  # times the limit: up to this length the error has the exact number of tokens
SLACK = 1.1  # a text in parts has slightly more tokens than in one


def most_tokens(pair: ModelPair, options: RunOptions) -> float:
    """Return the longest prompt that can be read with these options, in tokens."""
    context = pair.target.model.config.context
    compressed = pair.drafter is not None and options.compress != "off" and not options.scorer.reads_target
    return context / options.keep_ratio if compressed else context


def check_length(pair: ModelPair, prompt: Prompt, options: RunOptions) -> None:
    """Raise TooLongError for a prompt that is far too long, before all of its tokens are made: 14 MB of text take a
    core many seconds.

    Tokens are counted up to the limit, and only if a few samples suggest that there are more. A prompt that is slightly
    too long is left to `fit`, which needs all tokens.
    """
    most, text, tokenizer = most_tokens(pair, options), prompt.text, pair.target.tokenizer
    enough = EXACT_FACTOR * SLACK * most
    if len(text) <= enough or estimate_tokens(tokenizer, text) <= enough:
        return
    if (count := count_tokens(tokenizer, text, enough)) > enough:
        raise TooLongError(
            f"the prompt has over {int(count / SLACK)} tokens, but {pair.target.path.name} reads at most {int(most)} "
            "with these options; shorten it"
        )


def estimate_tokens(tokenizer: Tokenizer, text: str) -> float:
    """Estimate the number of tokens of a text from samples."""
    step = max(len(text) // SAMPLES, SAMPLE)
    samples = [text[start : start + SAMPLE] for start in range(0, len(text), step)]
    return sum(len(tokenizer.encode(sample)) for sample in samples) * len(text) / sum(map(len, samples))


def count_tokens(tokenizer: Tokenizer, text: str, enough: float) -> int:
    """Return about the number of tokens of a text, or some number above `enough`."""
    count = 0
    for start in range(0, len(text), PART):
        count += len(tokenizer.encode(text[start : start + PART]))
        if count > enough:
            break
    return count


@dataclass
class Precheck:
    """Checks waiting requests one by one, in a thread of its own."""

    pair: ModelPair
    pool: Executor = field(default_factory=partial(ThreadPoolExecutor, 1, "sp-precheck"))

    def check(self, job: CompletionJob) -> None:
        """Raise the error that would refuse a request before a model reads any of it."""
        target, options = self.pair.target, job.options
        prompt, _ = to_prompt(job, target.template, target.tokenizer)
        # A token has at least one byte: a text this short fits, and need not be tokenised here.
        if len(prompt.text.encode()) + FRAME + options.max_new_tokens <= target.model.config.context:
            return
        check_length(self.pair, prompt, options)
        tokens = prompt.tokenise(target.tokenizer)
        try:
            fit(target, len(tokens), options, self.pair.drafter is not None, int(tokens.mask("protected").sum()))
        except TooLongError as error:
            if error.room is None or error.room < 1:  # with room for one token the answer is shortened instead
                raise
