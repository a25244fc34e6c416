"""`sp chat`: question after question over one transcript, of which each turn reads only what is new."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sp.commands.known.strategies import read_settings
from sp.commands.open_pair import asked_maths, asked_ropes, open_pair, scorers_of, tell_thinking, thinking_of
from sp.commands.options import (
    VRAM,
    BreakEven,
    Cache,
    Compress,
    Drafter,
    DrafterMath,
    DrafterRope,
    OnDevice,
    Positions,
    ReasoningEffort,
    Rotate,
    Scorer,
    Selector,
    Target,
    TargetMath,
    TargetRope,
    ThinkingMode,
    tokens_option,
)
from sp.commands.talk.lines import piped_lines, typed_lines
from sp.commands.terminal import check_folder, read_text
from sp.config import from_mapping
from sp.errors import ConfigError


def chat(
    load: Annotated[
        list[Path] | None, typer.Option(help="Text file to talk about, read with the first message; repeatable.")
    ] = None,
    system: Annotated[str, typer.Option(help="What the model is told before everything else.")] = "",
    target: Target = None,
    drafter: Drafter = None,
    target_rope: TargetRope = None,
    drafter_rope: DrafterRope = None,
    math: TargetMath = "bf16",
    drafter_math: DrafterMath = "bf16",
    keep_ratio: Annotated[
        float, typer.Option(help="Share of each turn's new tokens that the target reads, in (0, 1].")
    ] = 0.05,
    recall: Annotated[
        str, typer.Option(help="How what was left out comes back when it matters: auto, append, rewind or off.")
    ] = "auto",
    recall_ratio: Annotated[float, typer.Option(help="Share of what was left out that a turn may bring back.")] = 0.05,
    recall_tokens: Annotated[int, tokens_option(least=1, help="Most tokens that a turn may bring back.")] = 384,
    scorer: Scorer = "auto",
    selector: Selector = "top_chunks",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Option of a strategy, e.g. scorer.queries=16 or selector.chunk=64; repeatable."),
    ] = None,
    compress: Compress = "auto",
    break_even: BreakEven = None,
    positions: Positions = "original",
    kv: Cache = "f16",
    keys: Annotated[str, typer.Option(help="Cached keys and values of the drafter: f16, q4_0 or f32.")] = "f16",
    rotate: Rotate = None,
    thinking: ThinkingMode = "auto",
    reasoning_effort: ReasoningEffort = None,
    max_new_tokens: Annotated[int, tokens_option(least=1, help="Longest answer, thinking included, in tokens.")] = 256,
    device: OnDevice = "auto",
    vram: VRAM = None,
    seed: Annotated[int, typer.Option(help="For scorers that draw random numbers.")] = 0,
    needle: Annotated[
        list[str] | None, typer.Option(help="Piece of the text to mark in rows and picture; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON lines to write: what stood where, turn by turn.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="PNG to draw at the end: the transcript, and what each turn had of it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line, one for each turn.")] = False,
) -> None:
    """Talk with the target about long texts, turn after turn.

    Only what is new is read; of that, what matters for the question. What was left out comes back when a later
    question asks for it. /help tells the commands. Ctrl-C ends an answer, Ctrl-D leaves. Lines that are piped in are a
    message each; answers go to stdout, all else to stderr.

    [bold]Examples[/bold]

      sp chat --load book.txt --keep-ratio 0.1

      sp chat --load book.txt --picture talk.png < questions.txt

      sp chat --target Qwen3-8B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --thinking off --json < questions.txt
    """
    from sp.commands.talk.loop import Loop
    from sp.commands.talk.session import Session
    from sp.session import Conversation, ConversationOptions, RunOptions

    given = {
        "keep_ratio": keep_ratio,
        **read_settings(scorer, selector, "greedy", settings or []),
        "compress": compress,
        "positions": positions,
        "kv": kv,
        "rotate": rotate,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
    }
    wanted = {"recall": recall, "recall_ratio": recall_ratio, "recall_tokens": recall_tokens, "keys": keys}
    options = from_mapping(RunOptions, given, "sp chat")
    ropes, maths = asked_ropes(target_rope, drafter_rope), asked_maths(math, drafter_math)
    memory, asked = from_mapping(ConversationOptions, wanted, "sp chat"), thinking_of(thinking, reasoning_effort)
    for path, option in ((out, "--out"), (picture, "--picture")):
        _check_file(path, option)
    if picture is not None and picture.suffix != ".png":
        raise ConfigError(f"--picture draws a PNG, so {picture} must end in .png")
    texts = [(path, read_text(path, "--load")) for path in load or []]
    how = {**ropes, **maths, "scorers": scorers_of(options)}
    pipeline = open_pair(target, drafter, device, vram, break_even, None, how)
    tell_thinking(asked, pipeline.target)
    session = Session(Conversation(pipeline, options, memory), system, asked, tuple(needle or ()))
    for path, text in texts:
        session.add(text)
        print(f"{path}: {len(text):,} characters, read with the first message", file=sys.stderr)
    pipeline.warm_up(options=options)
    typed = sys.stdin.isatty()
    loop = Loop(session, as_json=as_json, typed=typed, out=out)
    try:
        loop.run(typed_lines() if typed else piped_lines())
    finally:
        if picture is not None and session.rows:
            loop.draw(picture)


def _check_file(path: Path | None, option: str) -> None:
    """ConfigError for a file that cannot be written."""
    if path is not None and path.is_dir():
        raise ConfigError(f"{path} is a folder; give {option} the name of a file")
    check_folder(path and path.parent, option)
