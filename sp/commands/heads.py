"""`sp heads`: which attention heads of a model retrieve."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Annotated

from sp.commands.asked import OnDevice
from sp.commands.shell.line import arg, opt
from sp.commands.shell.terminal import AsJson, print_json, print_table, progress_bar, text_width
from sp.config import Tokens
from sp.errors import ConfigError


def heads(
    file: Annotated[Path | None, arg("A GGUF file; the embedded drafter if left out.")] = None,
    out: Annotated[Path | None, opt("-o", "--out", help="Write the map of heads to this file.")] = None,
    task: Annotated[str, opt(help="The task the prompts are of; one answer, copied from one needle.")] = "needle",
    tokens: Annotated[tuple[Tokens, ...], opt("-t", "--tokens", help="Prompt lengths, comma-separated.")] = (
        1024,
        2048,
        4096,
    ),
    examples: Annotated[int, opt("-n", "--examples", least=1, help="Prompts of each length.")] = 20,
    top: Annotated[int, opt(least=1, help="Heads to print, best first.")] = 12,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how often each head looks at the very needle token that the model says next (arXiv 2404.15574).

    The prompts are those of a task, unless told `needle`: one fact in generated prose, at any depth, in several
    phrasings. Only prompts that the model answers right count. Scores say how well a head retrieves, from 0 to 1;
    the scorer `retrieval_heads` takes those above its threshold.

    Examples
    --------
      sp heads
      sp heads Qwen3-0.6B-BF16.gguf -t 4k,16k -n 20 -o heads.json
      sp run --drafter Qwen3-0.6B-BF16.gguf --scorer retrieval_heads --set scorer.map=heads.json ...
    """
    from sp.evals import TASKS
    from sp.evals.heads import measure_heads
    from sp.evals.trained_for import note_of_file
    from sp.session.loaded import embedded, load
    from sp.session.report import warn_extrapolated

    lengths = [length for length in tokens if length]
    if not lengths:
        raise ConfigError("-t names no prompt length; give one as in -t 4k")
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.parent} to write it in")
    drawn_from = TASKS.build(task)
    loaded = load(file or embedded("drafter"), extrapolate=True, device=device)
    if max(lengths) > (longest := loaded.model.config.context):
        raise ConfigError(f"-t {max(lengths)}: {loaded.path.name} reads {longest} tokens at most; ask for fewer")
    loaded = loaded.for_prompt(max(lengths))
    warn_extrapolated("model", loaded, max(lengths))

    def count(text: str) -> int:
        return len(loaded.tokenizer.encode(text).ids)

    drawn = (drawn_from.example(index, length, count) for length in lengths for index in range(examples))
    with progress_bar("measuring", len(lengths) * examples) as advance:
        found = measure_heads(loaded.model, loaded.tokenizer, loaded.template, drawn, advance)
    if out is not None:
        found.save(out)
    if as_json:
        print_json(
            {"model": found.model, "made": found.made, "scores": found.scores, "file": str(out) if out else None}
        )
        return
    rows = sorted(((s, layer, head) for layer, row in found.scores.items() for head, s in enumerate(row)), reverse=True)
    right, prompts = found.made["right"], found.made["prompts"]
    print(f"{loaded.path.name}: {right} of {prompts} prompts answered right, {len(rows)} heads")
    print_table(["layer", "head", "score"], [[str(la), str(h), f"{s:.3f}"] for s, la, h in rows[:top]], "table", 0)
    if note := note_of_file(loaded.path):
        print(fill(note, text_width()))
    if out is not None:
        print(f"written to {out}")
