"""Answers with a draft from prompt to text on the device: those of greedy decoding, and nothing made anew when warm."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import cupy
import pytest

from sp.decode import DDTree, DFlash, Greedy
from sp.models.run.captured_graph import CapturedGraph
from sp.models.synthetic.dflash_synthetic import DraftShape
from sp.models.synthetic.synthetic import write_random
from sp.prompt import Prompt
from sp.session import Pipeline, RunOptions
from sp.studies.sample import sample

pytestmark = pytest.mark.no_sanitizer  # counts of memory are of no use there
OPTIONS = RunOptions(keep_ratio=0.2, compress="always", max_new_tokens=24)
DECODERS = (Greedy(), DFlash(), DDTree(22), DDTree(63, 8))


@cache
def drafting() -> Pipeline:
    """The embedded pair with a random draft."""
    pair = Pipeline.open(device="cuda")
    c = pair.target.model.config
    shape = DraftShape("random", c.hidden, 256, 4, 2, 128, (1, 6, c.layers - 1), 3, 60, (True, False))
    path = write_random(Path(mkdtemp()) / "draft.gguf", shape.metadata(), shape.plan("q8_0"), 5)
    return pair.with_speculator(path)


def answer(pair: Pipeline, **changes):
    document, example = sample()
    at = document.index(example.needle)
    text = document[max(0, at - 6000) : at + 6000]
    prompt = Prompt.from_document(text, example.question, pair.target.template, needle=example.needle)
    return pair.run(prompt, replace(OPTIONS, **changes), full=False).answer


@pytest.mark.parametrize(("kv", "rotate"), [("f16", False), ("q4_0", True)])
def test_every_way_answers_the_same(kv, rotate) -> None:
    found = {decode: answer(drafting(), decode=decode, kv=kv, rotate=rotate) for decode in DECODERS}
    for decode, one in found.items():
        assert one.tokens == found[Greedy()].tokens, decode
        assert (one.acceptance_length is None) == (decode == Greedy())
        assert sum(one.passes) >= len(one.tokens) - 1 or decode == Greedy()


def test_a_warm_request_captures_nothing_and_asks_the_driver_for_nothing(monkeypatch) -> None:
    captured: list[object] = []
    capture = CapturedGraph._capture
    monkeypatch.setattr(CapturedGraph, "_capture", lambda self, *given: captured.append(1) or capture(self, *given))
    for decode in DECODERS:
        tokens, used = [], []
        for _ in range(4):
            captured.clear()
            one = answer(drafting(), decode=decode)
            tokens.append(one.tokens)
            used.append(cupy.get_default_memory_pool().used_bytes())
        print(
            f"{decode}: {used[-1] / 2**20:.1f} MiB in use, driver asked",
            one.trace.facts["residency"]["driver_requests"],
        )
        assert not captured
        assert one.trace.facts["residency"]["driver_requests"] == 0
        assert len(set(tokens)) == 1
        assert used[-1] == used[-2]


def test_a_budget_counts_the_draft_and_holds() -> None:
    free = answer(drafting(), decode=DDTree(22))
    peak = free.trace.facts["residency"]["peak_bytes"]
    tight = drafting().within(peak - (6 << 20))
    for _ in range(2):
        one = answer(tight, decode=DDTree(22))
        assert one.tokens == free.tokens
        report = one.trace.facts["residency"]
        assert report["peak_bytes"] <= report["budget_bytes"]
    assert tight.memory_manager.cache_pool.drop() is False, "within a budget nothing is kept between answers"
    answer(drafting().within(None), decode=Greedy())  # which lifts the budget
