"""Acceptance of the shipped draft in ``sp``: ``python draft_accept.py PLAN.yaml DATA ASSETS OUT.jsonl``.

Every prompt is read once; greedy decoding and both speculative ways go on from copies of what the target then holds.
``tokens`` are those up to the end token without the first, which the prompt gives, ``passes`` the target's for them,
and ``equal`` counts answers that are greedy decoding's token for token. Wrong answers are counted like right ones.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from copy import deepcopy
from hashlib import sha256
from pathlib import Path

import numpy as np
import yaml
from batches import apply_mask, kept_mask
from draft_figures import interval

from sp.decode import DECODERS, Speculative
from sp.decode.greedy import gather, generate
from sp.decode.speculate import speculate
from sp.kernels.machine import machine_facts
from sp.models import Model, load_model, prefill
from sp.models.drafts.dflash import Draft, load_draft
from sp.models.drafts.dflash_session import DraftSession
from sp.models.passes.tree import LayerFeatures

WAYS = ("dflash", "ddtree")


def answers(
    model: Model, draft: Draft, ids: np.ndarray, positions: np.ndarray, limit: int, end: frozenset[int]
) -> dict[str, tuple[list[int], int]]:
    """Tokens and passes of one prompt by way of decoding."""
    ways = {name: DECODERS.build(name, {}) for name in WAYS}
    nodes = {n: w.nodes(draft.block_size) for n, w in ways.items() if isinstance(w, Speculative)}
    cache = model.new_cache(len(ids) + limit + max(nodes.values()), "f16")
    features: list[np.ndarray] = []
    logits = prefill(
        model, ids, positions, cache, after=LayerFeatures(draft.layers, lambda f: features.append(f.copy()))
    )
    at = int(positions[-1]) + 1
    plain = gather(generate(model, logits, at, deepcopy(cache), limit=limit), end)
    out = {"greedy": (plain, min(len(plain), limit - 1))}
    for name, way in ways.items():
        session = DraftSession.begin(draft, model, len(ids) + limit)
        session.remember(np.concatenate(features), positions)
        passes: list[int] = []
        found = speculate(model, session, way, logits, at, deepcopy(cache), limit=limit, on_pass=passes.append)
        out[name] = gather(found, end), len(passes)
    return out


def tell(found: list[dict[str, tuple[list[int], int]]], facts: dict, limit: int, out: Path) -> None:
    """Append a record by way of decoding to a file and print it; ``facts`` come first in it."""
    for way in WAYS:
        tokens = [min(len(f[way][0]), limit - 1) for f in found]
        passes = [f[way][1] for f in found]
        record = {"decode": way} | facts | {
            "n": len(found), "equal": sum(f[way][0] == f["greedy"][0] for f in found), "tokens": sum(tokens),
            "passes": sum(passes), "greedy_passes": sum(f["greedy"][1] for f in found),
            "accepted": round(sum(tokens) / sum(passes), 3), "interval": interval(tokens, passes),
            "one_pass": sum(p == 1 for p in passes), "limit": limit, "machine": machine_facts("cpu"),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }  # fmt: skip
        with out.open("a") as f:
            f.write(json.dumps(record) + "\n")
        shown = ("decode", "task", "length", "n", "equal", "accepted", "interval", "one_pass")
        print({k: record[k] for k in shown}, flush=True)


def shipped(assets: Path) -> tuple[Model, Draft, dict[str, str]]:
    """Target and draft of a folder, and the SHA-256 of their files as records name them."""
    model = load_model(assets / "target.gguf")
    sums = {f"{r}_sha256": sha256((assets / f"{r}.gguf").read_bytes()).hexdigest() for r in ("draft", "target")}
    return model, load_draft(assets / "draft.gguf", model), sums


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("plan", type=Path)
    a.add_argument("data", type=Path)
    a.add_argument("assets", type=Path)
    a.add_argument("out", type=Path)
    args = a.parse_args()
    plan = yaml.safe_load(args.plan.read_text())
    model, draft, sums = shipped(args.assets)
    from evaluate import Drawer  # with PyTorch, which counting acceptance needs not

    drawer = Drawer("target", args.data)
    end = frozenset({drawer.encoder.end, drawer.encoder.end_of_text})
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for c, case in enumerate(plan["cases"]):
        for length, n in case["n"].items():
            started, rng = time.time(), random.Random(length + c)
            found = []
            for i in range(n):
                recipe = plan["recipe"] | case.get("recipe", {})
                s = drawer((recipe, length, plan["seed"] + 7919 * c + 104729 * i + length))
                mask = np.ones(len(s.ids), bool)
                if keep := case.get("keep"):
                    mask = kept_mask(s, keep, rng, {x for t in s.turns for x in t.needles})
                mask[s.prompt_end :] = False
                item = apply_mask(s, mask, np.arange(len(s.ids)))
                found.append(answers(model, draft, item["ids"], item["positions"], plan["limit"], end))
            facts = {"task": case["name"], "length": length, "keep": case.get("keep", 1.0), "seed": plan["seed"]}
            tell(found, facts | sums | {"seconds": round(time.time() - started, 1)}, plan["limit"], args.out)


if __name__ == "__main__":
    main()
