"""`sp plan`: whether a model file runs on which card, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sp.commands.terminal import AsJson, print_json
from sp.config import token_count
from sp.errors import ConfigError, short


def plan(
    file: Annotated[Path, typer.Argument(help="A GGUF file, or the first of its shards.")],
    drafter: Annotated[
        Path | None, typer.Option(help="GGUF of the small model; a published one is reckoned with if left out.")
    ] = None,
    card: Annotated[
        str | None, typer.Option(help="Memory of the card, e.g. 24g; the smallest that does, if left out.")
    ] = None,
    context: Annotated[str, typer.Option(help="Prompt and answer together, in tokens, e.g. 32k.")] = "128k",
    as_json: AsJson = False,
) -> None:
    """Tell whether a model file runs, on which card, with what memory and drafter, and by which command.

    Only headers are read. Memory is reckoned as it is reserved when models are loaded, and what work takes besides by
    bounds that recorded requests stayed within. Exit status 1 if the answer is no.

    [bold]Examples[/bold]

      sp plan Qwen3.6-27B-Q4_K_M.gguf

      sp plan Qwen3.6-27B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --card 24g --context 128k
    """
    from sp.models.inspect.cards import ANSWER, KEEP
    from sp.models.inspect.plan import plan_file
    from sp.models.inspect.plan_tables import render_plan
    from sp.pipeline.plan import break_even

    tokens = token_count(context, "--context")
    if not ANSWER < tokens <= MOST_TOKENS:
        raise ConfigError(f"--context {short(context)}: {ANSWER} tokens of it are for the answer; give more, up to 16m")
    found = plan_file(file, drafter, card=None if card is None else read_card(card), tokens=tokens)
    told = found.as_dict()
    if found.drafter is not None and found.target.config is not None:
        told["drafter"]["pays_from_tokens"] = break_even(found.target.config, found.drafter.config, KEEP)
    if as_json:
        print_json(told)
    else:
        console = Console(highlight=False)
        console.print(render_plan(told))
        if told["command"] is not None:
            console.print(f"\n{escape(told['command'])}", style="bold", soft_wrap=True)  # on one line, to be copied
    if told["verdict"]["runs"] == "no":
        raise typer.Exit(1)


MOST_CARD, MOST_TOKENS = 1 << 14, 1 << 24
"""GiB of a card, and tokens, beyond any use."""


def read_card(text: str) -> int:
    """GiB of a card, which may be written with its unit.

    >>> read_card("24g"), read_card("24"), read_card("24GB")
    (24, 24, 24)
    """
    digits = text.strip().lower().removesuffix("ib").removesuffix("b").removesuffix("g")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 6 and 2 <= int(digits) <= MOST_CARD):
        raise ConfigError(f"--card takes whole GiB such as 24g, at least 2, not {text[:40]!r}")
    return int(digits)
