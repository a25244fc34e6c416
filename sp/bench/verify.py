"""What a round of guessing ahead is made of: the draft's step, the pass that verifies, and keeping what stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sp.bench.decode import SKIPPED
from sp.bench.simulate import deepest
from sp.bench.timing import spread
from sp.decode import DDTree, DFlash, Speculative
from sp.decode.speculate import new_cycle
from sp.kernels import import_cupy
from sp.kernels.launch import launched_sources, reset_launched
from sp.models import prefill
from sp.models.drafts.dflash import Draft
from sp.models.drafts.dflash_session import DraftSession
from sp.models.passes.tree import LayerFeatures
from sp.session import Loaded, RunOptions

KEPT = 8
PARTS = ("guess", "propose", "verify", "keep", "remember")


@dataclass(frozen=True)
class Round:
    """Rounds with passes of one number of nodes.

    Attributes
    ----------
    nodes : int
    kept : int
        Of them, each round.
    ms : dict of str to tuple of float
        Samples by part: ``guess`` (the draft's block), ``propose`` (the tree, on the host), ``verify`` (the pass of
        the target, logits included), ``keep`` (the path), ``remember`` (its features, by the draft).
    decode_ms : float
        Of a greedy step after the same context, in the same process.
    sources : tuple of str
        Kernels launched.
    """

    nodes: int
    kept: int
    ms: dict[str, tuple[float, ...]]
    decode_ms: float
    sources: tuple[str, ...]

    def metrics(self) -> dict[str, float]:
        """Medians; `ms` is the pass, `draft_ms` the draft's whole step."""
        found = {name: spread(samples).median for name, samples in self.ms.items()}
        parts = {f"{name}_ms": found[name] for name in PARTS if name != "verify"}
        draft = found["guess"] + found["remember"]
        return {
            "ms": found["verify"],
            "ratio_to_decode": found["verify"] / self.decode_ms,
            "decode_ms": self.decode_ms,
            **parts,
            "draft_ms": draft,
        }


def fitting(nodes: Sequence[int], block_size: int) -> list[int]:
    """Sizes of passes that a draft's blocks can fill, in place of those asked for; each once.

    Examples
    --------
    >>> fitting([5, 16, 23], 2), fitting([5, 16, 23], 16)
    ([5, 9], [5, 16, 23])
    """
    return list(dict.fromkeys(_decoder(n, block_size).nodes(block_size) for n in nodes))


def time_round(
    target: Loaded, draft: Draft, nodes: int, decode_ms: float, options: RunOptions, *, context: int, repeats: int
) -> Round:
    """Time rounds after a random context: a chain while the draft's block holds it, else a tree.

    Parameters
    ----------
    nodes : int
        As many as the draft's blocks can fill, see `fitting`.
    decode_ms : float
        See `Round`.
    options : RunOptions
        Of the target's cache.
    repeats : int
        Rounds that count, after `SKIPPED` that do not.
    """
    reset_launched()
    decoder, model = _decoder(nodes, draft.block_size), target.model
    rng, kept = np.random.default_rng(0), min(KEPT, nodes, draft.block_size)
    room = context + (repeats + SKIPPED) * kept + nodes
    cache = model.new_cache(room, options.kv, rotate=options.rotate)
    session, read = DraftSession.begin(draft, model, room), 0

    def take(features: Any) -> None:
        nonlocal read
        session.remember(features, np.arange(read, read + len(features)))
        read += len(features)

    ids = rng.integers(0, model.config.vocab, context)
    rows = context if model.config.layers - 1 in draft.layers else 1
    prefill(model, ids, np.arange(context), cache, after=LayerFeatures(draft.layers, take), rows=rows)
    cycle = new_cycle(model, session, cache, nodes)
    mark, ended = _marks(model.device)
    marks: list[list[Any]] = []
    try:
        for number in range(repeats + SKIPPED):
            position = context + number * kept
            with cycle.working():
                seen = [mark()]
                guessed = cycle.guess(number, position, draft.block_size - 1)
                seen.append(mark())
                tree = decoder.propose(number, guessed, rng)
                seen.append(mark())
                cycle.read(tree, position)
                seen.append(mark())
                path = deepest(tree)[:kept]
                cycle.keep(path)
                seen.append(mark())
                cycle.remember(path, position + tree.depths[path])
                marks.append([*seen, mark()])
            assert len(tree.tokens) == nodes, f"a tree of {len(tree.tokens)} nodes"
            assert len(path) == kept, f"a path of {len(path)} nodes"
    finally:
        cycle.end()
    spans = [ended(one) for one in marks[SKIPPED:]]
    samples = {name: tuple(span[i] for span in spans) for i, name in enumerate(PARTS)}
    return Round(nodes, kept, samples, decode_ms, launched_sources())


def _decoder(nodes: int, block_size: int) -> Speculative:
    """What proposes passes of so many nodes."""
    return DFlash(nodes - 1) if nodes <= block_size else DDTree(nodes - 1)


def _marks(device: str) -> tuple[Callable[[], Any], Callable[[Sequence[Any]], list[float]]]:
    """A way to mark now, by events on the device, and one to tell the milliseconds between marks."""
    if device == "cpu":
        return time.perf_counter, lambda marks: (1e3 * np.diff(marks)).tolist()
    cuda = import_cupy().cuda

    def ended(marks: Sequence[Any]) -> list[float]:
        marks[-1].synchronize()
        return [float(cuda.get_elapsed_time(before, after)) for before, after in pairwise(marks)]

    return lambda: cuda.get_current_stream().record(), ended


def describe_round(found: Round, target: Loaded, draft: Draft, common: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `make_record`; samples are milliseconds of the pass, `common` as for decoding."""
    return {
        "bench": "verify",
        "config": {
            **common,
            "draft": draft.path.name,
            "nodes": found.nodes,
            "kept": found.kept,
            "pass": "chain" if found.nodes <= draft.block_size else "tree",
        },
        "metrics": found.metrics(),
        "samples": list(found.ms["verify"]),
        "sources": found.sources,
        "device": target.model.device,
    }
