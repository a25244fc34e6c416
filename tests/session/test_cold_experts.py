"""A mixture as the target of a budget that does not hold it, on a device that only counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dry_walk import MODELS, walked

from sp.models.layer.cold_experts import ring_bytes
from sp.models.synthetic.shapes import find_shape
from sp.models.synthetic.synthetic import write_synthetic
from sp.planning.memory import cold_layers, device_weights, stack_bytes, work_bytes

SHAPE, TYPE = "tiny-qwen35moe", "q8_0"
WALK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import dry_device, dry_memory
dry_device.install()
from dataclasses import asdict
from sp.errors import SpError
from sp.session import Pipeline, RunOptions, embedded, load, synthetic
from sp.prompt import Prompt

path, budget = sys.argv[2], json.loads(sys.argv[3])
out = {}
for name, device in (("cuda", budget), ("none", 1 << 20)):
    try:
        pair = Pipeline.open(path, embedded("drafter"), device="cuda", vram=device)
    except SpError as error:
        out["refused"] = str(error)
pair = Pipeline.open(path, embedded("drafter"), device="cuda", vram=budget)
out["layers"] = pair.target.model.cold.ring.layers
out["nbytes"] = pair.target.model.nbytes
out["held"] = dry_memory.pool.total_bytes()
prompt = Prompt.from_document("A line of words that say little. " * 300, "What is said?", pair.target.template)
for options in (RunOptions(0.3, compress="always", max_new_tokens=4), RunOptions(compress="off", max_new_tokens=4)):
    trace = pair.run(prompt, options, full=False).answer.trace
    out.setdefault("facts", []).append({name: trace.facts[name] for name in ("experts", "expert_choices")})
    out.setdefault("peaks", []).append(trace.facts["residency"]["peak_bytes"])
out["room"] = pair.memory_manager.pool.source.used_bytes()
ring, used = pair.target.model.cold.ring, dry_memory.pool.used_bytes
out["freed"] = []
for busy in ("target", "drafter"):
    pair.memory_manager._busy, before, away = busy, used(), pair.memory_manager._offloaded_others(busy)
    pair.memory_manager._leave_room(1)
    out["freed"].append([before - used(), pair.memory_manager._offloaded_others(busy) == away])
pair.memory_manager._busy = None
again = pair.run(prompt, options, full=False).answer.trace.facts
assert again["expert_choices"] == trace.facts["expert_choices"]
out["ring"] = ring.room
print(json.dumps(out))
dry_memory.pool.set_limit(0)
one = synthetic("tiny-qwen35moe", "q8_0", device="cuda", room=budget).model
assert one.cold.ring.layers == pair.target.model.cold.ring.layers
assert one.nbytes == pair.target.model.nbytes, (one.nbytes, pair.target.model.nbytes)
"""


COMMAND = """
import sys
sys.path.insert(0, sys.argv[1])
import dry_device, dry_memory
dry_device.install()
from sp import cli
from sp.commands import common
from sp.session import embedded
common.compile_kernels = lambda: None
dry_memory.most_pinned.append(1 << 20)
given = "--device", "cuda", "--prompt-file", sys.argv[4], "--question", "What?"
pair = "--target", sys.argv[2], "--drafter", str(embedded("drafter"))
sys.argv = ["sp", "run", *pair, "--vram", sys.argv[3], *given]
cli.main()
"""


@pytest.fixture(scope="module")
def sizes() -> tuple[Any, int, Any]:
    found = find_shape(SHAPE)
    formats = {name: fmt for name, _, fmt in found.plan(TYPE)}
    weights = sum(row.nbytes for row in device_weights(found.config, formats))
    return found.config, weights, stack_bytes(found.config, formats)


@pytest.fixture(scope="module")
def found(sizes, tmp_path_factory) -> dict[str, Any]:
    config, weights, stacks = sizes
    path = write_synthetic(tmp_path_factory.mktemp("m") / "m.gguf", SHAPE, TYPE)
    three = (1, 2, 3)
    held = weights - sum(sum(stacks[i]) for i in three) + ring_bytes([stacks[i] for i in three])
    budget = work_bytes(config) + weights - 1  # three wait: two of them leave no more room than their own ring takes
    assert cold_layers(config, weights, stacks, budget).device == held
    return json.loads(walked(WALK, str(path), str(budget))) | {  # type: ignore[no-any-return]
        "budget": budget,
        "least": held,
    }


def test_layers_wait_as_the_budget_asks(found, sizes) -> None:
    assert len(found["layers"]) == 3
    assert found["nbytes"] == found["least"]
    assert found["held"] <= found["budget"]
    assert max(found["peaks"]) <= found["budget"]


def test_what_waits_and_what_was_chosen_is_told(found, sizes) -> None:
    config, _, stacks = sizes
    host = sum(sum(stacks[layer]) for layer in found["layers"])
    compressed, whole = found["facts"]
    assert compressed["experts"][0] == f"experts of 3 of 4 layers wait in host memory, {host / 1e6:.1f} MB"
    for told in (compressed, whole):
        choices = told["expert_choices"]
        assert choices["decoded"] == 3 * config.experts.used * 2  # the last of three steps is a replay
        assert choices["prompt"] > 1000
        assert list(choices["hit_rates"]) == ["0.125", "0.25", "0.5"]
        assert len(told["experts"]) == 2
    assert compressed["expert_choices"]["prompt"] < whole["expert_choices"]["prompt"]


def test_the_ring_leaves_for_who_needs_the_room(found) -> None:
    (_, others_left), (freed, stayed) = found["freed"]
    assert not others_left  # the target at work keeps it, and parts of the drafter leave
    assert freed == found["ring"]
    assert stayed


def test_a_budget_too_small_for_all_else_is_one_line(found) -> None:
    assert "do not fit the budget of 0.00 GiB; use a smaller model or a larger --vram" in found["refused"]
    assert "\n" not in found["refused"]


def test_host_memory_that_cannot_be_pinned_ends_the_command_in_one_line(sizes, tmp_path: Path) -> None:
    path, words = write_synthetic(tmp_path / "m.gguf", SHAPE, TYPE), tmp_path / "words.txt"
    words.write_text("A line of words that say little. " * 300)
    budget = f"{(work_bytes(sizes[0]) + sizes[1] - 1) / 2**20}m"
    command = [sys.executable, "-c", COMMAND, str(MODELS), str(path), budget, str(words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "for experts that wait in host memory; free host memory or pass a larger --vram" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_budget_that_holds_the_model_leaves_it_whole(sizes) -> None:
    config, weights, stacks = sizes
    assert cold_layers(config, weights, stacks, work_bytes(config) + weights).layers == ()
