"""`sp chat`: question after question over one transcript, of which each turn reads only what is new."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from sp.chat import Thinking
from sp.commands.asked import RunAsked, open_pair, scorers_of, tell_thinking
from sp.commands.line import Part, opt
from sp.commands.talk import Loop, Session, piped_lines, typed_lines
from sp.commands.terminal import AsJson, check_file, read_text
from sp.errors import ConfigError
from sp.session import Conversation, ConversationOptions
from sp.session.options import ModelOptions, PlaceOptions


def chat(
    models: ModelOptions,
    asked: Annotated[RunAsked, Part(max_new_tokens=256)],
    memory: ConversationOptions,
    thinking: Thinking,
    place: Annotated[PlaceOptions, Part("cards target_cards")],
    load: Annotated[
        list[Path] | None, opt(help="Text file to talk about, read with the first message; repeatable.")
    ] = None,
    system: Annotated[str, opt(help="What the model is told before everything else.")] = "",
    needle: Annotated[list[str] | None, opt(help="Piece of the text to mark in rows and picture; repeatable.")] = None,
    out: Annotated[Path | None, opt(help="JSON lines to write: what stood where, turn by turn.")] = None,
    picture: Annotated[
        Path | None, opt(help="PNG to draw at the end: the transcript, and what each turn had of it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Talk with the target about long texts, turn after turn.

    Only what is new is read; of that, what matters for the question. What was left out comes back when a later
    question asks for it. /help tells the commands. Ctrl-C ends an answer, Ctrl-D leaves. Lines that are piped in are a
    message each; answers go to stdout, all else to stderr.

    Examples
    --------
      sp chat --load book.txt --keep-ratio 0.1
      sp chat --load book.txt --picture talk.png < questions.txt
      sp chat --target Qwen3-8B-Q4_K_M.gguf --drafter Qwen3-0.6B-BF16.gguf --thinking off --json < questions.txt
    """
    for path, option in ((out, "--out"), (picture, "--picture")):
        check_file(path, option)
    if picture is not None and picture.suffix != ".png":
        raise ConfigError(f"--picture draws a PNG, so {picture} must end in .png")
    texts = [(path, read_text(path, "--load")) for path in load or []]
    pipeline = open_pair(models, place, scorers_of(asked))
    tell_thinking(thinking, pipeline.target)
    session = Session(Conversation(pipeline, asked.options, memory), system, thinking, tuple(needle or ()))
    for path, text in texts:
        session.add(text)
        print(f"{path}: {len(text):,} characters, read with the first message", file=sys.stderr)
    pipeline.warm_up(options=asked.options)
    typed = sys.stdin.isatty()
    loop = Loop(session, as_json=as_json, typed=typed, out=out)
    try:
        loop.run(typed_lines() if typed else piped_lines())
    finally:
        if picture is not None and session.rows:
            loop.draw(picture)
