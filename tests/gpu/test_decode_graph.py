"""Decoding in a CUDA graph gives what decoding launch by launch gives, across pages, formats and paths."""

from __future__ import annotations

import numpy as np
import pytest
from device_models import NAMES, case

from sp.decode.base import GraphDecoder, greedy
from sp.errors import PromptError
from sp.models import decode_step, prefill

pytestmark = pytest.mark.no_sanitizer  # the captures allocate
START, NEW = 120, 40  # crosses a page border


def read(model, ids, kv="f16", rotate=False, room=START + NEW):
    cache = model.new_cache(room, kv, rotate=rotate)
    return prefill(model, ids[:START], np.arange(START), cache), cache


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("kv", "rotate"), [("f16", False), ("q8_0", True), ("5bit", True), ("4bit", True), ("q4_0", True)]
)
def test_graph_equals_eager(name, kv, rotate, path) -> None:
    c, found, states = case(name), {}, {}
    for eager in (True, False):
        logits, cache = read(c.gpu, c.ids, kv, rotate)
        found[eager] = list(GraphDecoder(c.gpu, cache, NEW, eager=eager).tokens(logits, START, NEW))
        assert cache.tokens == START + NEW - 1
        after = decode_step(c.gpu, found[eager][-1], START + NEW - 1, cache).get()
        states[eager] = after
    assert found[True] == found[False]
    assert len(found[True]) == NEW
    np.testing.assert_array_equal(states[True], states[False])


@pytest.mark.parametrize("name", ["target", "drafter", "tiny-qwen35:q8_0"])
def test_graph_equals_decode_steps_from_the_host(name) -> None:
    c = case(name)
    logits, cache = read(c.gpu, c.ids)
    found = greedy(c.gpu, logits, START, cache, eos_ids=frozenset(), max_new_tokens=NEW)
    logits, cache = read(c.gpu, c.ids)
    wanted = []
    for step in range(NEW):
        wanted.append(int(logits.argmax()))
        if step + 1 < NEW:
            logits = decode_step(c.gpu, wanted[-1], START + step, cache)
    assert found == wanted


def test_decoding_stops_at_an_end_token_and_work_after_it_waits() -> None:
    c = case("target")
    logits, cache = read(c.gpu, c.ids)
    everything = greedy(c.gpu, logits, START, cache, eos_ids=frozenset(), max_new_tokens=NEW)
    end = everything[5]
    first = everything.index(end)
    for _ in range(3):
        logits, cache = read(c.gpu, c.ids)
        seen: list[int] = []
        found = greedy(c.gpu, logits, START, cache, eos_ids=frozenset({end}), max_new_tokens=NEW, on_token=seen.append)
        assert found == seen == everything[:first]
        assert cache.tokens in (START + first, START + first + 1)


@pytest.mark.parametrize("name", ["target", "tiny-qwen35:q8_0"])
def test_two_sequences_decode_side_by_side(name) -> None:
    c = case(name)
    alone = []
    for shift in (0, 50):
        logits, cache = read(c.gpu, c.ids[shift:])
        alone.append(greedy(c.gpu, logits, START, cache, eos_ids=frozenset(), max_new_tokens=NEW))
    decoders = []
    for shift in (0, 50):
        logits, cache = read(c.gpu, c.ids[shift:])
        decoders.append(GraphDecoder(c.gpu, cache, NEW).tokens(logits, START, NEW))
    together = list(zip(*decoders, strict=True))
    assert [list(tokens) for tokens in zip(*together, strict=True)] == alone


def test_no_room_and_no_context_are_prompt_errors() -> None:
    c = case("target")
    logits, cache = read(c.gpu, c.ids, room=START + 3)
    with pytest.raises(PromptError, match="do not fit a cache"):
        greedy(c.gpu, logits, START, cache, eos_ids=frozenset(), max_new_tokens=NEW)
    logits, cache = read(c.gpu, c.ids)
    with pytest.raises(PromptError, match="context"):
        greedy(c.gpu, logits, c.gpu.config.context - 2, cache, eos_ids=frozenset(), max_new_tokens=NEW)
