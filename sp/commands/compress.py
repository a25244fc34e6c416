"""`sp compress`: shorten a text for a question."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from sp.commands.common import report_once
from sp.commands.front import Device, Drafter, KeepRatio, Mark, ScorerName, SelectorName
from sp.commands.shell.parser import arg, opt
from sp.commands.shell.terminal import AsJson, print_json, read_text


def compress(
    file: Annotated[Path, arg("File of the text, - for standard input.")],
    question: Annotated[str, opt(help="Question about the text; its last paragraph if omitted.")] = "",
    drafter: Drafter = None,
    keep_ratio: KeepRatio = 0.2,
    scorer: ScorerName = "auto",
    selector: SelectorName = "segments",
    mark: Mark = True,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Shorten a text for a question, and write it to standard output.

    Kept text has the bytes of the file, and the ranges that --json prints refer to them. JSON stays valid with the
    selectors segments and json. A line on standard error has the number of kept tokens.

    Examples
    --------
      sp compress book.txt --question "Who lives in the tower?" --keep-ratio 0.1 > short.txt
      git log -p | sp compress - --question "Which commit renamed the parser?"
      sp compress events.json --question "When did the pump stop?" --scorer bm25 --json
    """
    from dataclasses import asdict

    from sp.front.shorten import Compressor

    text = read_text(file, "FILE", piped=True, keep_offsets=True)
    options: dict[str, Any] = {"scorer": scorer, "selector": selector, "mark": mark, "device": device}
    short = Compressor.open(drafter, keep_ratio=keep_ratio, reporter=report_once, **options).compress(text, question)
    if as_json:
        print_json({**asdict(short), "kept": [list(piece) for piece in short.kept]})
        return
    sys.stdout.write(short.text if short.text.endswith("\n") else short.text + "\n")
    reason = f"; {short.reason}" if short.reason else ""
    line = f"sp: kept {short.kept_tokens:,} of {short.tokens:,} tokens in {short.seconds:.2f} s{reason}"
    print(line, file=sys.stderr)
