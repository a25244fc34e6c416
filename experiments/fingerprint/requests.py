"""Decoding with a draft, importance by every scorer, and requests from text to answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np

from fingerprint.finding import find, known
from fingerprint.models import BLOCK, NEW, PATHS, Files, ids_of, model_of, path_of
from sp.scoring import SCORERS

Case = tuple[str, Callable[[], Any]]
SPARSE = {"attention": "flashprefill", "alpha": 0.05}
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "tail": ({"queries": "question"}, SPARSE, {"rotary": "none", "order": "heads,queries,pool"},
             {"order": "heads,queries,pool", "over_queries": "max", "pooling": "max", "pool": 64},
             {"attention": "flashprefill", "density": 0.1}, {"layers": [1]}),
    "lookahead": ({"queries": 3, "last": False}, SPARSE),
    "mid_layer": ({"queries": 4, "rotary": "post"},),
    "snapkv": ({"queries": 8, "over_heads": "mean", "pooling": "max", "pool": 5},),
    "head_vote": ({"vote": "reciprocal", "chunk_size": 16},),
    "entropy_weight": ({"beta": 0.5},),
    "sink_masked": ({"sink": 0, "recent": 40, "renormalise": False},),
    "self_information": (SPARSE,),
    "embedding": ({"centred": False, "chunk_size": 20, "depth": 1},),
    "anchored": ({"asked": 0, "radius": "by_length"},),
}  # fmt: skip
"""By scorer, options besides the default."""
REQUESTS: tuple[dict[str, Any], ...] = (
    {},
    {"compress": "off"},
    {"kv": "q4_0", "rotate": True},
    {"positions": "contiguous"},
    {"mapping": "text_rejoin", "positions": "contiguous"},
    {"state_gaps": "decay"},
    {"scorer": ("lookahead", {})},
    {"scorer": ("tail", {"attention": "flashprefill"})},
)


@cache
def draft_of(name: str) -> Any:
    """The embedded draft, or a random one."""
    model = model_of(name)
    if name == "target":
        return find("load_draft")(path_of("target").with_name("draft.gguf"), model)
    c = model.config
    layers, path = (0, c.layers // 2, c.layers - 1), Files.folder / f"draft-{name.replace(':', '-')}.gguf"
    if not path.exists():
        shape = find("DraftShape")("random", c.hidden, 256, 4, 2, 128, layers, 3, 60, (True, False), BLOCK)
        find("write_random")(path, shape.metadata(), shape.plan("q8_0"), 5)
    return find("load_draft")(path, model)


def decoders() -> dict[str, Any]:
    """By name, what proposes and accepts."""
    flash, tree = find("DFlash"), find("DDTree")
    return {"dflash": flash(), "dflash 3": flash(3), "dflash warm": flash(temperature=0.8), "ddtree 22": tree(22),
            "ddtree 63": tree(63, 6), "ddtree free": tree(30, 4, chain_seed=False)}  # fmt: skip


def speculated(path: str, name: str, kv: str, decoder: str) -> Any:
    """Tokens decoded with a draft, how many a pass gave, and the draft's guess afterwards."""
    model, draft, start, made = model_of(name), draft_of(name), 120, decoders()[decoder]
    with find("forced_path")(path):
        nodes = made.nodes(draft.block_size)
        store = model.new_cache(start + NEW + nodes, kv, rotate=kv == "q4_0")
        room = start + NEW + nodes
        session = (
            draft.begin(model, room) if hasattr(draft, "begin") else find("DraftSession").begin(draft, model, room)
        )
        read = 0

        def take(rows: Any) -> None:
            nonlocal read
            session.remember(rows, np.arange(read, read + len(rows)))
            read += len(rows)

        after = find("LayerFeatures")(session.layers, take)
        ids = ids_of(name)[:start]
        seen = {"hooks": find("Hooks")(after_layer=after)} if known("Hooks") else {"after": after}
        logits = find("prefill", "models")(model, ids, np.arange(start), store, chunk=100, rows=start, **seen)
        guess = session.guess(5, start, draft.block_size - 1).copy()
        passes: list[int] = []
        how = model, session, made, logits, start, store
        return [guess, list(find("speculate")(*how, limit=NEW, on_pass=passes.append)), passes]


def scored(path: str, name: str, options: dict[str, Any], role: str = "drafter") -> Any:
    """Importance of every token of the sample's end."""
    n = 2009
    ids = ids_of(role, n)
    where = np.arange(n)
    request = find("ScoreRequest")(model_of(role), ids, where, where >= n - 20, where // 40 == 20, by_head=True)
    with find("forced_path")(path):
        got = SCORERS.build(name, options).score(request)
    return [got.scores, got.by_layer, got.by_head, list(got.generated), list(got.densities)]


@cache
def pair() -> Any:
    """Target and drafter as people open them."""
    return find("Pipeline").open(device="cuda").with_speculator(find("embedded", "load")("draft"))


def asked(path: str, changes: dict[str, Any]) -> Any:
    """A request from text to answer."""
    document, example = find("sample", "studies")()
    at = document.index(example.needle)
    text = document[max(0, at - 6000) : at + 6000]
    options = {"keep_ratio": 0.15, "scorer": ("tail", {}), "compress": "always", "max_new_tokens": 12} | changes
    if "decode" in options:
        options["decode"] = decoders()[options["decode"]]
    options["scorer"] = SCORERS.build(*options["scorer"])
    with find("forced_path")(path):
        prompt = find("Prompt").from_document(text, example.question, pair().target.template, needle=example.needle)
        got = pair().run(prompt, find("RunOptions")(**options), full=False)
    return [list(got.answer.tokens), got.answer.text, got.scores, got.selection.selected if got.selection else None]


def request_cases() -> Iterator[Case]:
    """Drafts, scorers, requests."""
    for name in ("target", "tiny-qwen3:q4_k_m", "tiny-qwen35:q8_0"):
        for path in PATHS:
            for decoder in decoders():
                for kv in ("f16", "q4_0"):
                    label = f"speculate {path} {name} {kv} {decoder}"
                    yield label, partial(speculated, path, name, kv, decoder)
    for path in PATHS:
        for name in SCORERS:
            role = "target" if SCORERS.build(name).reads_target else "drafter"
            for options in ({}, *OPTIONS.get(name, ())):
                yield f"score {path} {name} {options}", partial(scored, path, name, options, role)
        for changes in REQUESTS:
            yield f"request {path} {changes}", partial(asked, path, changes)
        for decoder in ("dflash", "ddtree 22"):
            yield f"request {path} {decoder}", partial(asked, path, {"decode": decoder})
