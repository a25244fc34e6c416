"""What a window means for kept tokens: loss and planted answers of a model with windows, distance taken three ways.

    python experiments/real/windows.py gemma-3-270m.gguf --device cuda --out windows.jsonl
    python experiments/real/windows.py gemma-3-270m.gguf --texts natural/*.txt --ways position contiguous
    python experiments/real/windows.py --draw windows.jsonl windows.png

`position`: windows hide what stood further away in the whole prompt, as `sp` has it. `token`: they count kept tokens,
and RoPE keeps the places of the whole prompt. `contiguous`: kept tokens are renumbered, for windows and for RoPE.
Texts are modules and topics of the standard library, or files; of each the last tokens are predicted, or an answer that
was hidden in it. Chunks of 32 tokens are kept by the words they share with what comes last, or at random. Rows: nats a
token, and of answers whether every token was the likeliest one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from math import log
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from sp.models.network.model import Model
from sp.models.run.layer_major import stream_layer_major
from sp.ops.array_module import array_module
from sp.ops.attention.score_rule import window_reach
from sp.session import load

LAST, ASK, CHUNK = 192, 128, 32
WAYS = ("position", "token", "contiguous")
NAMES = ("Marsden", "Okafor", "Lindqvist", "Petrenko", "Haldane", "Quiroga")
MODULES = ("argparse", "tarfile", "_pydecimal", "turtle", "subprocess", "typing", "inspect", "doctest", "pickle", "pdb")


def texts() -> Iterator[str]:
    """Prose and code of some 10K tokens each."""
    from pydoc_data import topics

    prose = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    yield from (prose[start : start + 60_000] for start in range(0, len(prose) - 60_000, 60_000))
    for name in MODULES:
        yield (Path(os.__file__).parent / f"{name}.py").read_text("utf-8")[2000:70_000]


def losses(model: Model, ids: np.ndarray, positions: np.ndarray, way: str, last: int) -> tuple[float, bool]:
    """Nats a token of the last ones, and whether each was the likeliest."""
    cache = model.new_cache(len(ids), "f16" if model.device == "cuda" else "f32")
    if way == "contiguous":
        positions = np.arange(len(ids))
    if way == "token":
        order = model.place(np.arange(len(ids)))

        def reach(layer: int, positions: Any, window: int, *, tree: bool = False) -> Any:
            total = cache.length(layer)
            places = order[:total].copy()
            return window_reach(places[total - len(positions) :], places, total, window)

        cache.reach = reach  # type: ignore[method-assign]
    stream = stream_layer_major(model, ids, positions, cache)
    logits = model.head(stream[-last - 1 : -1])
    xp = array_module(logits)
    logits, wanted = logits.astype(np.float64), xp.asarray(ids[-last:])
    highest = logits.max(axis=1)
    total = highest + xp.log(xp.exp(logits - highest[:, None]).sum(axis=1))
    return float((total - logits[xp.arange(last), wanted]).mean()), bool((logits.argmax(axis=1) == wanted).all())


def chosen(ids: list[int], query: list[int], free: int, share: float, how: str, rng: random.Random, fact: slice) -> Any:
    """Places to keep: the first token, the best chunks, all that comes last. A hidden fact is among them."""
    chunks = [range(start, min(start + CHUNK, free)) for start in range(1, free, CHUNK)]
    found = Counter(token for chunk in chunks for token in {ids[at] for at in chunk})
    weight = {token: log(len(chunks) / found[token]) for token in set(query) if found[token]}
    words = [sum(weight.get(token, 0.0) for token in {ids[at] for at in chunk}) for chunk in chunks]
    value = words if how == "words" else [rng.random() for _ in chunks]
    order = sorted(
        range(len(chunks)), key=lambda i: (chunks[i].stop <= fact.start or chunks[i].start >= fact.stop, -value[i])
    )
    kept = sorted(order[: max(1, int(share * len(ids)) // CHUNK)])
    return np.array([0, *(at for i in kept for at in chunks[i]), *range(free, len(ids))])


def study(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of all texts."""
    loaded, rng, tokens = load(args.model, device=args.device), random.Random(5), args.tokens
    model, sources = loaded.model, (path.read_text("utf-8") for path in args.texts) if args.texts else texts()

    def encode(text: str, framed: bool = False) -> list[int]:
        return [int(token) for token in loaded.tokenizer.encode(text, framed=framed).ids]

    for number, text in enumerate(sources):
        if number == args.examples:
            return
        plain = encode(text, framed=True)[:tokens]
        if len(plain) < tokens:
            continue
        name, code = rng.choice(NAMES), " ".join(str(rng.randrange(10, 99)) for _ in range(4))
        for task in ("loss", "answer"):
            whole, fact, last = list(plain), slice(0, 0), LAST
            asked = whole[-LAST - ASK : -LAST]
            if task == "answer":
                told = encode(f"\nThe locker number of Dr {name} is {code}.\n")
                asked = encode(f"\n\nQuestion: What is the locker number of Dr {name}?\nAnswer: It is")
                said = encode(f" {code}")
                at, last = rng.randrange(tokens // 8, tokens * 3 // 4), len(said)
                fact = slice(at, at + len(told))
                whole[fact] = told
                whole[-len(asked) - last :] = [*asked, *said]
            free, array = tokens - last - len(asked), np.array(whole)
            row = {"text": number, "task": task, "tokens": tokens}
            loss, right = losses(model, array, np.arange(tokens), "position", last)
            yield row | {"way": "full", "keep": 1.0, "loss": loss, "right": right}
            ends = np.array([0, *range(free, tokens)])
            loss, right = losses(model, array[ends], ends, "position", last)
            yield row | {"way": "nothing kept", "keep": 0.0, "loss": loss, "right": right}
            for how in args.by:
                for share in args.keep:
                    places = chosen(whole, asked, free, share, how, rng, fact)
                    for way in args.ways:
                        loss, right = losses(model, array[places], places, way, last)
                        yield row | {"way": way, "kept by": how, "keep": share, "loss": loss, "right": right}


def summary(rows: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """By task, what chose, way and share: loss, half its 95 % interval, answers right, count."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["task"], row.get("kept by", ""), row["way"], row["keep"]), []).append(row)
    for key, some in sorted(groups.items()):
        loss = [row["loss"] for row in some]
        spread = 1.96 * stdev(loss) / len(loss) ** 0.5 if len(loss) > 1 else 0.0
        yield (*key, mean(loss), spread, sum(row["right"] for row in some), len(some))


def draw(rows: list[dict[str, Any]], to: Path) -> None:
    """Loss by share, a panel a task; chunks by words."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
    found = {key[:4]: key[4:6] for key in summary(rows)}
    shares = sorted({row["keep"] for row in rows if row.get("kept by") == "words"})
    for panel, task, title in zip(panels, ("loss", "answer"), ("the text goes on", "a hidden answer"), strict=True):
        for way, mark in zip(WAYS, "os^", strict=True):
            values = [found[task, "words", way, share] for share in shares]
            panel.errorbar(shares, [v[0] for v in values], [v[1] for v in values], marker=mark, label=way, capsize=2)
        panel.axhline(found[task, "", "full", 1.0][0], color="black", lw=1, label="full prefill")
        panel.axhline(found[task, "", "nothing kept", 0.0][0], color="black", lw=1, ls=":", label="nothing kept")
        panel.set(title=title, xlabel=f"kept of {rows[0]['tokens']:,} tokens", ylabel="nats a token", yscale="log")
    panels[0].legend(fontsize=7)
    figure.savefig(to, dpi=200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--examples", type=int, default=99, help="texts at most")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--keep", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.5], help="shares of the tokens")
    parser.add_argument("--by", nargs="+", choices=("words", "random"), default=["words", "random"])
    parser.add_argument("--texts", type=Path, nargs="+", help="text files instead of the standard library")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--out", type=Path, help="JSON lines to write")
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("JSONL", "PNG"))
    args = parser.parse_args()
    if args.draw:
        return draw([json.loads(line) for line in args.draw[0].read_text("utf-8").splitlines()], args.draw[1])
    rows = []
    for row in study(args):
        rows.append(row)
        if args.out:
            with args.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
    for task, how, way, share, loss, spread, right, n in summary(rows):
        print(f"{task:7}{how:7}{way:13}{share:5.2f}  {loss:6.3f} +- {spread:5.3f}  {right:3} of {n}")


if __name__ == "__main__":
    main()
