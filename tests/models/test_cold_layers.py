"""Layers whose experts wait in host memory: how many, what of them is on the device, and what is read where.

Whole models run on a device that only counts; its matrices are filled here, so that bytes of layers can be told apart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dry_walk import walked
from tiny_models import rewritten

from sp.errors import ModelError
from sp.models.layer.cold_experts import ring_bytes
from sp.models.synthetic.shapes import find_shape
from sp.models.synthetic.synthetic import write_synthetic
from sp.planning.memory import cold_layers, device_weights, spaced_layers, stack_bytes, work_bytes
from sp.session import load

WALK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import dry_device, dry_memory
dry_device.install()
import numpy as np
from sp.decode.base import greedy
from sp.models import load_model, prefill, prefill_layer_major
from sp.models.device.parts import Parts, arrays_of
from sp.models.layer import feed_forward as experts
from sp.models.run.tree import TreeReader
from sp.models.layer.cold_experts import PinnedWeight

def stacks(block):
    return (*block.ffn.into, block.ffn.down_stack)

def mark(weights, but=()):
    for i, block in enumerate(weights.blocks):
        for j, w in enumerate(stacks(block)):
            w.data.host[:] = 10 * i + j

def reads():
    seen, add = [], experts.add_experts
    def noted(x, h, gate, up, down, *given, **how):
        found = {int(s.weight.data.host[0]) for s in (gate, up, down)}
        assert all((s.weight.data.host == s.weight.data.host[0]).all() for s in (gate, up, down))
        layer = min(found) // 10
        assert len(found) == len(stacks(model.weights.blocks[layer])), found
        seen.append([layer, len(x), type(down.weight).__name__])
        return add(x, h, gate, up, down, *given, **how)
    experts.add_experts = noted
    return seen

path, cold = sys.argv[2], json.loads(sys.argv[3])
whole = load_model(path, device="cuda")
held = dry_memory.pool.used_bytes()
dry_memory.pinned.clear()
model = load_model(path, device="cuda", cold=cold)
out = {"pinned": sum(dry_memory.pinned), "bytes": [whole.nbytes, model.nbytes], "room": model.cold.ring.room}
out["grown"] = dry_memory.pool.used_bytes() - held
mark(model.weights)
parts = Parts(model)
out["parts"] = sum(parts.sizes.values())
here = [array.host.ctypes.data for array in arrays_of(model.weights)]
out["moving"] = any(w.data.host.ctypes.data in here for i in cold for w in stacks(model.weights.blocks[i]))
seen, n = reads(), 200
cache, ids = model.new_cache(n + 30), np.arange(n)
logits = prefill(model, ids, ids, cache, chunk=100)
out["prefill"], seen[:] = list(seen), []
out["prompt"] = model.cold.choices().decoded
model.cold.end_of_prompt()
greedy(model, logits, n, cache, eos_ids=frozenset(), max_new_tokens=3)
out["decode"], seen[:] = list(seen), []
reader = TreeReader(model, cache, most=16)
reader.read_tree(ids[:16], ids[:16] - 1, n + 3 + ids[:16])
reader.commit_path(ids[:3])
out["tree"], seen[:] = list(seen), []
out["lines"] = model.cold.lines(model.cold.choices())
cache.reset()
prefill_layer_major(model, ids, ids, cache, chunk=100)
out["by layer"] = list(seen)
away = parts.next_to_offload()
parts.offload(away)
parts.onload(away, dry_device.Stream())
assert all(type(w) is PinnedWeight for i in cold for w in stacks(model.weights.blocks[i])), "moved"
seen.clear()
assert parts.drop_ring() and not parts.drop_ring()
cache.reset()
prefill(model, ids, ids, cache, chunk=100)
out["again"] = list(seen) == out["prefill"]
print(json.dumps(out))
"""
SHAPES = ("tiny-qwen3moe", "tiny-qwen35moe", "tiny-gpt-oss")


def sizes(shape: str, file_type: str = "q4_k_m") -> tuple[Any, int, Any]:
    """Configuration, bytes of all weights on the device, bytes of stacks by layer."""
    found = find_shape(shape)
    formats = {name: fmt for name, _, fmt in found.plan(file_type)}
    config = found.config
    return config, sum(row.nbytes for row in device_weights(config, formats)), stack_bytes(config, formats)


@pytest.fixture(scope="module", params=SHAPES)
def walk(request, tmp_path_factory) -> tuple[str, dict[str, Any]]:
    path = write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", request.param, "q4_k_m")
    return request.param, json.loads(walked(WALK, str(path), "[1, 2, 3]"))


def test_what_is_where_is_what_was_reckoned(walk) -> None:
    shape, found = walk
    _, weights, stacks = sizes(shape)
    host = sum(sum(stacks[layer]) for layer in (1, 2, 3))
    assert found["bytes"][0] == weights
    assert found["pinned"] == host
    assert found["room"] == ring_bytes([stacks[layer] for layer in (1, 2, 3)])
    assert found["bytes"][1] == weights - host + found["room"]
    rest = weights - host
    assert abs(found["parts"] - rest) < 1 << 16  # without the last norm, and each array at a multiple of 512 bytes
    assert rest <= found["grown"] - found["room"] < rest + (1 << 16)
    assert not found["moving"]


def test_a_prompt_has_whole_layers_brought_over_and_a_token_reads_what_it_chose(walk) -> None:
    _, found = walk
    streamed = [[0, 100, "PackedWeight"], [1, 100, "PackedWeight"], [2, 100, "PackedWeight"]]
    assert found["prefill"] == [*streamed, *streamed, [3, 1, "PinnedWeight"]]
    by_need = [[0, "PackedWeight"], [1, "PinnedWeight"], [2, "PinnedWeight"], [3, "PinnedWeight"]]
    assert [[layer, kind] for layer, _, kind in found["decode"]] == by_need * 2  # the third token is a replay
    assert found["tree"] == [[layer, 16, kind] for layer, kind in by_need]
    assert [each[0] for each in found["by layer"]] == [0, 0, 1, 1, 2, 2, 3]
    assert found["again"]


def test_choices_are_counted_and_told(walk) -> None:
    shape, found = walk
    used = find_shape(shape).config.experts.used  # type: ignore[union-attr]
    assert found["prompt"] == used * (2 * 200 + 1)  # of the last layer one row
    assert found["lines"][0].startswith("experts of 3 of 4 layers wait in host memory, ")
    assert found["lines"][1].startswith(f"decoding went to {3 * used * (2 + 16):,} experts of those layers and ")


@pytest.mark.parametrize("shape", ["qwen3.6-35b-a3b", "qwen3-30b-a3b"])
def test_as_few_layers_wait_as_the_budget_asks_for(shape) -> None:
    config, weights, stacks = sizes(shape)
    work, before = work_bytes(config), len(stacks)
    for gib in range(6, 32):
        room = gib << 30
        found = cold_layers(config, weights, stacks, room)
        number = len(found.layers)
        assert number <= before
        before = number
        ring = ring_bytes([stacks[layer] for layer in found.layers])
        assert found.device + found.host == weights + ring
        assert found.device + work <= room or number == config.layers
        if number:
            assert found.layers[-1] == config.layers - 1
            fewer = spaced_layers(number - 1, config.layers)
            held = weights - sum(sum(stacks[i]) for i in fewer) + ring_bytes([stacks[i] for i in fewer])
            assert held + work > room
    assert cold_layers(config, weights, stacks, 1 << 40).layers == ()


def test_layers_lie_apart() -> None:
    for most in (1, 7, 40, 48):
        for number in range(1, most + 1):
            found = np.array(spaced_layers(number, most))
            assert len(set(found.tolist())) == number
            assert found[-1] == most - 1
            gaps = np.diff(found, prepend=-1)
            assert gaps.max() - gaps.min() <= 1


def test_a_model_without_experts_has_none_that_wait() -> None:
    _, _, stacks = sizes("tiny-qwen3")
    assert stacks == ()


NO_ROOM = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device, dry_memory
dry_device.install()
from sp.errors import DeviceError
from sp.models import load_model
dry_memory.most_pinned.append(1 << 20)
try:
    load_model(sys.argv[2], device="cuda", cold=[1, 3])
except DeviceError as error:
    print(error, error.exit_code if hasattr(error, "exit_code") else "")
"""


def test_host_memory_that_cannot_be_pinned_is_one_line(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", "tiny-qwen35moe", "q4_k_m")
    told = walked(NO_ROOM, str(path))
    assert told.count("\n") == 1
    assert "blk.1.ffn_" in told
    assert "for experts that wait in host memory; free host memory or pass a larger --vram" in told


def test_files_that_are_incomplete_are_refused_by_loading(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", "tiny-qwen35moe", "q4_k_m")
    broken = rewritten(path, tmp_path / "broken.gguf", {"blk.1.ffn_down_exps.weight": None})
    with pytest.raises(ModelError, match=r"ffn_down_exps\.weight is missing"):
        load(broken, device="cpu", room=1 << 30)
