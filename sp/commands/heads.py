"""`sp heads`: measure the retrieval heads of a model."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Annotated

from sp.commands.common import OnDevice
from sp.commands.shell.parser import arg, opt
from sp.commands.shell.terminal import AsJson, print_json, print_table, progress_bar, text_width
from sp.config import Tokens
from sp.errors import ConfigError


def heads(
    file: Annotated[Path | None, arg("A GGUF file; the embedded drafter if omitted.")] = None,
    out: Annotated[Path | None, opt("-o", "--out", writes="file", help="Write the map of heads to this file.")] = None,
    task: Annotated[str, opt(help="Task of the prompts; it must have one answer, copied from one needle.")] = "needle",
    tokens: Annotated[tuple[Tokens, ...], opt("-t", "--tokens", help="Prompt lengths, comma-separated.")] = (
        1024,
        2048,
        4096,
    ),
    examples: Annotated[int, opt("-n", "--examples", least=1, help="Prompts per length.")] = 20,
    top: Annotated[int, opt(least=1, help="Heads to print, best first.")] = 12,
    device: OnDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how often each head attends most to the needle token that the model generates next (arXiv 2404.15574).

    Prompts are those of a task, by default needle: one fact in generated prose, at random depths, in several
    phrasings. Only prompts with right answers count. The score of a head is from 0 to 1; the scorer retrieval_heads
    uses heads above its threshold.

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
        raise ConfigError("-t has no prompt length above 0; pass one, such as -t 4k")
    source = TASKS.build(task)
    loaded = load(file or embedded("drafter"), extrapolate=True, device=device)
    if max(lengths) > (longest := loaded.model.config.context):
        raise ConfigError(f"-t {max(lengths)}: {loaded.path.name} reads {longest} tokens at most; pass fewer")
    loaded = loaded.for_prompt(max(lengths))  # one RoPE scaling for all lengths, that of the longest prompt
    warn_extrapolated("model", loaded, max(lengths))

    def count(text: str) -> int:
        return len(loaded.tokenizer.encode(text).ids)

    prompts = (source.example(index, length, count) for length in lengths for index in range(examples))
    with progress_bar("measuring", len(lengths) * examples) as advance:
        head_map = measure_heads(loaded.model, loaded.tokenizer, loaded.template, prompts, advance)
    if out is not None:
        head_map.save(out)
    if as_json:
        facts = {"model": head_map.model, "made": head_map.made, "scores": head_map.scores}
        print_json(facts | {"file": str(out) if out else None})
        return
    rows = [(score, layer, head) for layer, row in head_map.scores.items() for head, score in enumerate(row)]
    rows.sort(reverse=True)
    right, total = head_map.made["right"], head_map.made["prompts"]
    print(f"{loaded.path.name}: {right} of {total} prompts answered right, {len(rows)} heads")
    print_table(["layer", "head", "score"], [[str(la), str(h), f"{s:.3f}"] for s, la, h in rows[:top]], "table", 0)
    if note := note_of_file(loaded.path):
        print(fill(note, text_width()))
    if out is not None:
        print(f"written to {out}")
