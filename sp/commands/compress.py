"""`sp compress`: one text made shorter for a question."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from sp.commands.asked import once
from sp.commands.front import Device, Drafter, KeepRatio, Mark, ScorerName, SelectorName
from sp.commands.shell.line import arg, opt
from sp.commands.shell.terminal import AsJson, print_json, read_text


def compress(
    file: Annotated[Path, arg("Long text, - for standard input.")],
    question: Annotated[str, opt(help="What will be asked of it; its last paragraph if left out.")] = "",
    drafter: Drafter = None,
    keep_ratio: KeepRatio = 0.2,
    scorer: ScorerName = "auto",
    selector: SelectorName = "segments",
    mark: Mark = True,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Shorten a text for a question, and write it to standard output.

    A line on standard error tells how much was kept.

    Examples
    --------
      sp compress book.txt --question "Who lives in the tower?" --keep-ratio 0.1 > short.txt
      git log -p | sp compress - --question "Which commit renamed the parser?"
      sp compress events.json --question "When did the pump stop?" --scorer bm25 --json
    """
    from dataclasses import asdict

    from sp.front.rules import Rules
    from sp.front.shorten import Compressor

    Rules(keep_ratio)
    text = read_text(file, "FILE", piped=True)
    how: dict[str, Any] = {"scorer": scorer, "selector": selector, "mark": mark, "device": device}
    made = Compressor.open(drafter, keep_ratio=keep_ratio, reporter=once, **how).compress(text, question)
    if as_json:
        print_json({**asdict(made), "kept": [list(piece) for piece in made.kept]})
        return
    sys.stdout.write(made.text if made.text.endswith("\n") else made.text + "\n")
    print(f"sp: kept {made.kept_tokens:,} of {made.tokens:,} tokens in {made.seconds:.2f} s", file=sys.stderr)
