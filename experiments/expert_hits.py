"""How often decoding chooses the experts that its prompt chose most, by the share of a layer's experts that are hot.

    python experiments/expert_hits.py [--shares 0.125,0.25,0.5] [--prompt 2048] [--new 64]

Tiny mixtures of random weights read the embedded document and go on greedily, on the CPU: their routers are random, and
so is what they say. Rows named "simulated" draw a router with favourites as `sp kernels bench --family experts`
does, of `SPREAD` logits or more: no trained router was read. Prints a markdown table. Without favourites a share s of
hot experts is hit about s of the times; models of random weights soon repeat themselves, so theirs are hit more. The
embedded pair has no experts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from sp.arrays import Ints
from sp.bench.families.experts import COUNT, SPREAD, USED, favourites
from sp.decode.greedy import greedy
from sp.models import prefill
from sp.models.imbalance import watched
from sp.models.layers.hot_experts import hit_rate
from sp.ops.experts.routing import route
from sp.session import embedded, load, synthetic
from sp.studies.sample import sample

SHAPES = ("tiny-qwen3moe", "tiny-qwen35moe")
SPREADS = (0.0, SPREAD, 4 * SPREAD)


def of_model(shape: str, prompt: int, new: int) -> tuple[Ints, Ints]:
    """Choices by the prompt and while decoding of a tiny mixture of random weights."""
    loaded = synthetic(shape, "q8_0", device="cpu")
    model, counts = watched(loaded.model)
    ids = loaded.tokenizer.encode(sample()[0]).ids[:prompt]
    cache = model.new_cache(len(ids) + new)
    logits = prefill(model, ids, np.arange(len(ids)), cache)
    read = counts.copy()
    greedy(model, logits, len(ids), cache, eos_ids=frozenset(), max_new_tokens=new)
    return read, counts - read


def simulated(spread: float, prompt: int, new: int) -> tuple[Ints, Ints]:
    """The same of one layer whose router has favourites: popularities of `spread` logits beside a token's own."""
    experts = route(favourites(prompt + new, spread, seed=0), USED).experts
    read, decoded = (np.bincount(part.ravel(), minlength=COUNT)[None] for part in (experts[:prompt], experts[prompt:]))
    return read, decoded


def rows(shares: list[float], prompt: int, new: int) -> Iterator[tuple[str, list[float]]]:
    """What is printed: a name and a hit rate a share."""
    found = {f"{shape}, random router": of_model(shape, prompt, new) for shape in SHAPES}
    for spread in SPREADS:
        found[f"simulated, {USED} of {COUNT}, favourites of {spread:g} logits"] = simulated(spread, prompt, new)
    for name, counts in found.items():
        yield name, [hit_rate(*counts, share) for share in shares]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", default="0.125,0.25,0.5", help="of a layer's experts that are hot")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens that are read")
    parser.add_argument("--new", type=int, default=64, help="tokens that are decoded")
    asked = parser.parse_args()
    shares = [float(text) for text in asked.shares.split(",")]
    pair = {role: load(embedded(role), device="cpu").model.config for role in ("target", "drafter")}
    print(f"The embedded {' and '.join(role for role in pair if pair[role].experts is None)} have no experts.\n")
    print(f"| hot, of the choices of {asked.new} tokens after {asked.prompt} | {' | '.join(map(str, shares))} |")
    print("| --- |" + " ---: |" * len(shares))
    for name, rates in rows(shares, asked.prompt, asked.new):
        print(f"| {name} | {' | '.join(f'{rate:.2f}' for rate in rates)} |")


if __name__ == "__main__":
    main()
