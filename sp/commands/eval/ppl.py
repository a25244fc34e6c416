"""`sp eval ppl`: perplexity of the text behind a compressed passage."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from sp.chat import Thinking
from sp.commands.eval.options import Amount, Asked, Lengths
from sp.commands.eval.run import PERPLEXITY, check_writable, gather, show, trained_for, write_page
from sp.commands.line import Part, opt
from sp.commands.terminal import read_text
from sp.config import Tokens
from sp.errors import ConfigError


def ppl(
    asked: Annotated[Asked, Part(keep_ratio="0.1,0.3,0.5")],
    text: Annotated[Path | None, opt(help="UTF-8 text to read; generated prose if left out.")] = None,
    lengths: Lengths = (2048,),
    n: Amount = 4,
    continuation: Annotated[Tokens, opt(least=1, help="Tokens predicted after each passage.")] = 64,
) -> None:
    """Predict the text behind a compressed passage: perplexity, and divergence from the full prefill's predictions.

    Needs real language models to mean something; the embedded pair only looks things up.

    Examples
    --------
      sp eval ppl --text book.txt -p 8k,32k -n 8 --keep-ratio 0.05,0.1,0.3 --target target.gguf --drafter drafter.gguf
    """
    from sp.evals.fits import check_lengths
    from sp.evals.ppl import generated_text, passages, perplexity
    from sp.evals.run import counter
    from sp.evals.summary import summarise_perplexity
    from sp.pipeline.window import check_context
    from sp.prompt import Prompt
    from sp.studies.pages.lines_page import PREDICTED, lines_page

    if asked.thinking != Thinking("off"):
        raise ConfigError("sp eval ppl reads plain text, and no chat that asks for thinking; leave it out")
    cells = asked.cells()
    check_writable(asked.out)
    written = read_text(text, "--text") if text else None
    pipeline = asked.open(cells)
    check_lengths(pipeline, lengths)
    tokenizer, found = pipeline.target.tokenizer, []
    for tokens in lengths:
        source = written or generated_text(n * (tokens + continuation), counter(tokenizer), asked.seed)
        made = passages(source, tokens, continuation, n, tokenizer)
        if made:  # told before anything is read
            check_context(pipeline.target, len(pipeline.tokenise(Prompt(made[0].context))), continuation)
        found += made
    rows = gather(partial(perplexity, pipeline, found, cells), len(found) * (len(cells) + 1), asked.out)
    lines = summarise_perplexity(rows)
    if asked.out:
        write_page(asked.out, lines_page(f"sp eval ppl: {asked.out.name}", lines, PREDICTED, trained_for(pipeline)))
    show(lines, PERPLEXITY, asked, pipeline)
